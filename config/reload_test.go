package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func running(t *testing.T) File {
	t.Helper()
	f, err := Parse([]byte(minimal + "  - {name: far, kind: openai, url: \"http://far:1\"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestReloadTakesOverWhatARunningSidecarCan(t *testing.T) {
	for name, c := range map[string]struct {
		change           func(*File)
		changed, restart []string
	}{
		"nothing":          {func(*File) {}, nil, nil},
		"an objective":     {func(f *File) { f.SLO.TTFT, f.SLO.TBTTarget = time.Second, 0.9 }, []string{"slo.ttft", "slo.tbt_target"}, nil},
		"a list":           {func(f *File) { f.SLO.Tiers = []Tier{{Name: "a"}} }, []string{"slo.tiers"}, nil},
		"limits":           {func(f *File) { f.Proxy.IdleTimeout, f.Proxy.DrainTimeout = 1, 2 }, []string{"proxy.idle_timeout", "proxy.drain_timeout"}, nil},
		"keys":             {func(f *File) { f.Auth.Keys = []AuthKey{{Name: "a"}} }, []string{"auth.keys"}, nil},
		"interference":     {func(f *File) { f.Interference.Yield = Auto }, []string{"interference.yield"}, nil},
		"on_stop":          {func(f *File) { f.Trainers.OnStop = OnStopDrain }, []string{"trainers.on_stop"}, nil},
		"a free engine":    {func(f *File) { f.Engines[1].URL = "http://b:2" }, []string{"engines[1].url"}, nil},
		"a bound engine":   {func(f *File) { f.Engines[0].URL = "http://b:2" }, nil, []string{"engines[0].url"}},
		"another engine":   {func(f *File) { f.Engines[1].Name, f.Engines[1].URL = "b", "http://b:2" }, nil, []string{"engines[1].name", "engines[1].url"}},
		"onto a device":    {func(f *File) { f.Engines[1].Devices, f.Engines[1].URL = []string{"host0"}, "http://b:2" }, nil, []string{"engines[1].url", "engines[1].devices"}},
		"one engine more":  {func(f *File) { f.Engines = append(f.Engines, Engine{Name: "c", URL: "http://c:3"}) }, nil, []string{"engines"}},
		"listeners":        {func(f *File) { f.Listen, f.Admin.Listen = "a:1", "b:2" }, nil, []string{"listen", "admin.listen"}},
		"devices":          {func(f *File) { f.Devices[0].Capacity++ }, nil, []string{"devices[0].capacity"}},
		"trainers":         {func(f *File) { f.Trainers.Lease++; f.Trainers.AllowUIDs = []int{7} }, nil, []string{"trainers.allow_uids", "trainers.lease"}},
		"policy and queue": {func(f *File) { f.Policy.Quantile, f.Admission.QueueLimit = 0.5, 1 }, nil, []string{"policy.quantile", "admission.queue_limit"}},
		"prices":           {func(f *File) { f.Policy.Prices.Sample, f.Policy.Prices.Miss = 1, 2 }, []string{"policy.prices.sample", "policy.prices.miss"}, nil},
		"both kinds":       {func(f *File) { f.StateDir, f.SLO.E2E, f.Telemetry.LogLevel = "/x", 9, "debug" }, []string{"slo.e2e"}, []string{"state_dir", "telemetry.log_level"}},
	} {
		t.Run(name, func(t *testing.T) {
			old, next := running(t), running(t)
			c.change(&next)
			merged, changed, restart := old.Reload(next)
			if !slices.Equal(changed, c.changed) || !slices.Equal(restart, c.restart) {
				t.Errorf("changed %v, restart %v; want %v and %v", changed, restart, c.changed, c.restart)
			}
			if got := Diff(old, merged); !slices.Equal(got, c.changed) {
				t.Errorf("the result differs from the old file in %v, want %v", got, c.changed)
			}
			if !reflect.DeepEqual(old, running(t)) {
				t.Error("the old file was changed")
			}
		})
	}
}

// TestDiffSeesEveryField changes each field there is, so that a new one cannot be
// left out.
func TestDiffSeesEveryField(t *testing.T) {
	var visit func(key string, v reflect.Value, changed func() []string)
	visit = func(key string, v reflect.Value, changed func() []string) {
		if v.Kind() == reflect.Struct {
			for i := range v.NumField() {
				name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("koanf"), ",")
				visit(strings.Trim(key+"."+name, "."), v.Field(i), changed)
			}
			return
		}
		before := reflect.New(v.Type()).Elem()
		before.Set(v)
		switch v.Kind() {
		case reflect.String:
			v.SetString("another")
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Float64:
			v.SetFloat(v.Float() + 1)
		case reflect.Int, reflect.Int64:
			v.SetInt(v.Int() + 1)
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), v.Len()+1, v.Len()+1))
		default:
			t.Fatalf("%s is a %v, which no test knows", key, v.Kind())
		}
		if got := changed(); !slices.Equal(got, []string{key}) {
			t.Errorf("%s: got %v", key, got)
		}
		v.Set(before)
	}
	a, b := running(t), running(t)
	visit("", reflect.ValueOf(&b).Elem(), func() []string { return Diff(a, b) })
}
