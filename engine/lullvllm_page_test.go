package engine

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// pageVector is one line of vllm_plugin/testdata/pages.json, which Python reads too.
type pageVector struct {
	Name   string
	Page   string
	Hex    string
	Seq    uint64
	Fields map[string]uint64
	Error  string
}

// The names of the words as the vectors spell them, in the order of the layout.
var (
	telemetryNames = strings.Fields(`instance beats written_ns engine_pid mode flags ranks ranks_alive block_tokens block_bytes
		pool_blocks max_model_len baseline_bytes blocks_used blocks_free blocks_cached blocks_withdrawn blocks_pending blocks_mapped
		bound_bytes requested_epoch requested_bytes applied_epoch confirmed_epoch refused floor_bytes running waiting
		waiting_capacity waiting_deferred preemptions steps step_tokens step_ns prefix_queries prefix_hits evictions shortages
		short_bytes faults given_back_bytes given_back_ns worker_pid_0 worker_pid_1 worker_pid_2 worker_pid_3 worker_pid_4
		worker_pid_5 worker_pid_6 worker_pid_7 obeyed_step obeyed_left`)
	boundNames = strings.Fields("instance epoch bytes beats lease_us sidecar_pid")
)

func readPageVectors(t testing.TB) []pageVector {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("vllm_plugin", "testdata", "pages.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vs []pageVector
	if err := json.Unmarshal(raw, &vs); err != nil {
		t.Fatal(err)
	}
	return vs
}

func (v pageVector) kind() (string, []string) {
	if v.Page == "telemetry" {
		return telemetryMagic, telemetryNames
	}
	return boundMagic, boundNames
}

func TestPagesDecodeAsTheVectorsSay(t *testing.T) {
	if len(telemetryNames) != telemetryWords || len(boundNames) != boundWords {
		t.Fatalf("names: %d and %d, want %d and %d", len(telemetryNames), len(boundNames), telemetryWords, boundWords)
	}
	for _, v := range readPageVectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			raw, err := hex.DecodeString(v.Hex)
			if err != nil {
				t.Fatal(err)
			}
			magic, names := v.kind()
			seq, words, err := decodePage(magic, raw, len(names))
			if v.Error != "" {
				if err == nil || !strings.Contains(err.Error(), v.Error) {
					t.Fatalf("error %v, want one with %q", err, v.Error)
				}
				return
			}
			got := map[string]uint64{}
			for i, w := range words {
				got[names[i]] = w
			}
			if err != nil || seq != v.Seq || !maps.Equal(got, v.Fields) {
				t.Fatalf("got seq %d, %v, error %v, want seq %d, %v", seq, got, err, v.Seq, v.Fields)
			}
		})
	}
}

func TestPagesEncodeAsTheVectorsSay(t *testing.T) {
	for _, v := range readPageVectors(t) {
		if !slices.Contains([]string{"telemetry", "bound", "bound with the largest values"}, v.Name) {
			continue
		}
		magic, names := v.kind()
		words := make([]uint64, len(names))
		for i, n := range names {
			words[i] = v.Fields[n]
		}
		if got := hex.EncodeToString(encodePage(magic, v.Seq, words)); got != v.Hex {
			t.Errorf("%s: got %s, want %s", v.Name, got, v.Hex)
		}
	}
}

func TestMappedPageSaysWhatIsWrongWithIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v.page")
	words := make([]uint64, telemetryWords)
	whole := make([]byte, pageSize)
	copy(whole, encodePage(telemetryMagic, 2, words))
	odd := slices.Clone(whole)
	odd[16] = 3
	for name, c := range map[string]struct {
		raw  []byte
		want string
	}{
		"short file": {whole[:100], "100 bytes, want 4096"},
		"stays torn": {odd, "sequence 3 is odd: torn page"},
		"foreign":    {make([]byte, pageSize), `magic "\x00\x00\x00\x00\x00\x00\x00\x00"`},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, c.raw, 0o600); err != nil {
				t.Fatal(err)
			}
			p, err := mapPage(path)
			if err == nil {
				defer p.close()
				_, err = p.read(telemetryMagic, telemetryWords)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want one with %q", err, c.want)
			}
		})
	}
	if _, err := mapPage(filepath.Join(t.TempDir(), "none.page")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: error %v, want ErrNotExist", err)
	}
}

func TestPageThatIsCutShortIsAnErrorAndNoCrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v.page")
	whole := make([]byte, pageSize)
	copy(whole, encodePage(telemetryMagic, 2, make([]uint64, telemetryWords)))
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := mapPage(path)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if _, err := p.read(telemetryMagic, telemetryWords); err != nil {
		t.Fatalf("whole page: %v", err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := p.read(telemetryMagic, telemetryWords); err == nil || !strings.Contains(err.Error(), "page: reading the mapping") {
		t.Fatalf("cut page: error %v, want one about the mapping", err)
	}
}

func FuzzDecodePageNeverPanics(f *testing.F) {
	for _, v := range readPageVectors(f) {
		raw, _ := hex.DecodeString(v.Hex)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, magic := range []string{telemetryMagic, boundMagic} {
			seq, words, err := decodePage(magic, raw, boundWords)
			if err == nil && (seq&1 == 1 || len(words) != boundWords) {
				t.Fatalf("accepted sequence %d with %d words", seq, len(words))
			}
		}
	})
}

func BenchmarkPageRead(b *testing.B) {
	path := filepath.Join(b.TempDir(), "v.page")
	whole := make([]byte, pageSize)
	copy(whole, encodePage(telemetryMagic, 2, make([]uint64, telemetryWords)))
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		b.Fatal(err)
	}
	p, err := mapPage(path)
	if err != nil {
		b.Fatal(err)
	}
	defer p.close()
	for b.Loop() {
		if _, err := p.read(telemetryMagic, telemetryWords); err != nil {
			b.Fatal(err)
		}
	}
}
