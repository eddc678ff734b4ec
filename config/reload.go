package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Diff is the keys whose values differ, in the order of the file: slo.ttft,
// engines[0].url. A list that has another length is one key. It has no values in
// it: they may be nobody's business.
func Diff(a, b File) []string {
	var keys []string
	diff("", reflect.ValueOf(a), reflect.ValueOf(b), &keys)
	return keys
}

func diff(key string, a, b reflect.Value, keys *[]string) {
	switch a.Kind() {
	case reflect.Struct:
		for i := range a.NumField() {
			name, options, _ := strings.Cut(a.Type().Field(i).Tag.Get("koanf"), ",")
			sub := key
			if options != "squash" {
				sub = strings.TrimPrefix(key+"."+name, ".")
			}
			diff(sub, a.Field(i), b.Field(i), keys)
		}
	case reflect.Slice:
		if a.Len() != b.Len() {
			*keys = append(*keys, key)
			return
		}
		for i := range a.Len() {
			diff(fmt.Sprintf("%s[%d]", key, i), a.Index(i), b.Index(i), keys)
		}
	default:
		if !a.Equal(b) {
			*keys = append(*keys, key)
		}
	}
}

// live are the sections and keys that a running sidecar takes over. The rest is
// bound to sockets, locks, the ledger or what trainers were told on connecting.
var live = []string{"slo", "auth", "proxy", "interference", "trainers.on_stop", "policy.prices"}

// Reload is f with what can be taken over from next while requests run: the
// objectives, the prices, the data path's limits and keys, and the address of an engine that is
// on no device. changed are the keys that were taken over, restart those that were
// not. Both files must be valid; merged may still not be, where next depends on
// what was not taken over.
func (f File) Reload(next File) (merged File, changed, restart []string) {
	merged = f
	merged.SLO, merged.Auth, merged.Proxy, merged.Interference = next.SLO, next.Auth, next.Proxy, next.Interference
	merged.Trainers.OnStop, merged.Policy.Prices = next.Trainers.OnStop, next.Policy.Prices
	merged.Engines = slices.Clone(f.Engines)
	taken := slices.Clone(live)
	for i := range min(len(f.Engines), len(next.Engines)) {
		old, to := f.Engines[i], next.Engines[i]
		if old.Name == to.Name && len(old.Devices)+len(to.Devices) == 0 {
			merged.Engines[i].URL, merged.Engines[i].TLS = to.URL, to.TLS
			taken = append(taken, fmt.Sprintf("engines[%d].url", i), fmt.Sprintf("engines[%d].tls", i))
		}
	}
	for _, key := range Diff(f, next) {
		if slices.ContainsFunc(taken, func(t string) bool { return key == t || strings.HasPrefix(key, t+".") }) {
			changed = append(changed, key)
		} else {
			restart = append(restart, key)
		}
	}
	return merged, changed, restart
}
