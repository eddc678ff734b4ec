package traces

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Made-up rows in the published formats.
const (
	azure2024 = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:02.017335+00:00,2399,6\n2024-05-10 00:00:09+00:00,76,15\n"
	mooncake  = `{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}
{"timestamp": 0, "input_length": 70, "output_length": 5, "hash_ids": [0]}

{"timestamp": 3000, "input_length": 72, "output_length": 490}
{"timestamp": 8999, "input_length": 9, "output_length": 1}
`
	burstGPT = `Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,-1,3,ChatGPT,472,18,490,Conversation log
45.5,-1,8,ChatGPT,1087,230,1317,Conversation log
46,-1,8,GPT-4,10,0,10,API log
118,-1,4,GPT-4,417,276,693,Conversation log
`
)

// write makes a file, or a folder of files.
func write(t *testing.T, files map[string]string) string {
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestOpenTellsFormatsApart(t *testing.T) {
	dir := write(t, map[string]string{"a.csv": azure2024, "m.jsonl": mooncake, "b.csv": burstGPT})
	for name, want := range map[string]struct {
		format string
		rows   []Row // arrivals of Mooncake are drawn
	}{
		"a.csv":   {"azure", []Row{{0, 2162, 5, ""}, {2007405 * time.Microsecond, 2399, 6, ""}, {8990070 * time.Microsecond, 76, 15, ""}}},
		"m.jsonl": {"mooncake", []Row{{-1, 6758, 500, ""}, {-1, 70, 5, ""}, {-1, 72, 490, ""}, {-1, 9, 1, ""}}},
		"b.csv":   {"burstgpt", []Row{{0, 472, 18, "ChatGPT"}, {40500 * time.Millisecond, 1087, 230, "ChatGPT"}, {113 * time.Second, 417, 276, "GPT-4"}}},
	} {
		got, err := Open(filepath.Join(dir, name), Options{Seed: 3})
		if err != nil || got.Format != want.format || len(got.Rows) != len(want.rows) {
			t.Fatalf("%s: got %+v, %v, want %+v", name, got, err, want)
		}
		for i, r := range got.Rows {
			if want.rows[i].At < 0 {
				want.rows[i].At = r.At
			}
			if r != want.rows[i] {
				t.Errorf("%s: row %d: got %+v, want %+v", name, i, r, want.rows[i])
			}
		}
	}
}

func TestOpenCutsAndScales(t *testing.T) {
	path := filepath.Join(write(t, map[string]string{"b.csv": burstGPT}), "b.csv")
	got, err := Open(path, Options{From: 40 * time.Second, For: 10 * time.Second})
	if err != nil || len(got.Rows) != 1 || got.Rows[0].PromptTokens != 1087 || got.Rows[0].At != 0 {
		t.Errorf("got %+v, %v, want the second row alone", got, err)
	}
	got, err = Open(path, Options{Rate: 2})
	if err != nil || got.Rows[2].At != 56500*time.Millisecond {
		t.Errorf("at twice the rate: got %+v, %v", got, err)
	}
}

func TestMooncakeIsSpreadInsideItsGridInOrder(t *testing.T) {
	read := func(seed uint64) []Row {
		rows, err := readMooncake("m", strings.NewReader(mooncake), rand.New(rand.NewPCG(seed, 1)))
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	rows := read(1)
	for i, lo := range []time.Duration{0, 0, 3 * time.Second, 9 * time.Second} {
		if at := rows[i].At; at < lo-3*time.Second || at >= lo+3*time.Second || i > 0 && at < rows[i-1].At {
			t.Errorf("row %d at %v, want in order and in the 3 s from %v, less the first row's place", i, at, lo)
		}
	}
	if again := read(1); again[3] != rows[3] {
		t.Errorf("the same seed gives %+v and %+v", rows[3], again[3])
	}
	if other := read(2); other[3] == rows[3] {
		t.Error("another seed gives the same arrivals")
	}
}

func TestTimestampsOffAGridStayAsTheyAre(t *testing.T) {
	rows := []Row{{At: 0}, {At: 137 * time.Millisecond}, {At: 3 * time.Second}}
	spread(rows, rand.New(rand.NewPCG(1, 1)))
	if rows[1].At != 137*time.Millisecond || rows[2].At != 3*time.Second {
		t.Errorf("got %+v", rows)
	}
}

// serveGen is a folder with a client that has lengths and one that has none.
func serveGen(t *testing.T) string {
	return write(t, map[string]string{
		"traces_all_clients.csv": "client,t_s,rate_rps,cv,iat_dist,p1,p2\n0,0,5,1,Gamma,0.5,0.4\n0,600,50,1,Weibull,0.5,0.01\n1,0,100,1,Gamma,1,0.01\n2,0,0,0,,0,0\n",
		"chunk-0-dataset.json":   `{"600": {"input_tokens": "{}", "output_tokens": "{}"}, "0": {"input_tokens": "{172: 0.25, 17: 0.75}", "output_tokens": "{3: 1.0}"}}`,
		"chunk-2-dataset.json":   `{"0": {"input_tokens": "{1: 1}", "output_tokens": "{1: 1}"}}`,
	})
}

func TestServeGenIsDrawnByItsRatesAndLengths(t *testing.T) {
	got, err := Open(serveGen(t), Options{Seed: 1, For: 1200 * time.Second, Rate: 0.5})
	if err != nil || got.Format != "servegen" {
		t.Fatal(err)
	}
	early, short := 0, 0
	for i, r := range got.Rows {
		if r.Model != "client-0" || r.OutputTokens != 3 || i > 0 && r.At < got.Rows[i-1].At {
			t.Fatalf("row %d: %+v", i, r)
		}
		if r.At < 600*time.Second {
			early++
		}
		if r.PromptTokens == 17 {
			short++
		}
	}
	n := len(got.Rows)
	if math.Abs(float64(early)-1500) > 250 || math.Abs(float64(n-early)-15_000) > 2500 || math.Abs(float64(short)/float64(n)-0.75) > 0.02 {
		t.Errorf("%d rows, %d in the first window, %d of 17 tokens; want about 16500, 1500 and three quarters", n, early, short)
	}
	again, err := Open(serveGen(t), Options{Seed: 1, For: 1200 * time.Second, Rate: 0.5})
	if err != nil || len(again.Rows) != n || again.Rows[n-1] != got.Rows[n-1] {
		t.Errorf("the same seed gives other rows: %v", err)
	}
}

func TestOpenErrorsSayWhatWasSeenAndWanted(t *testing.T) {
	const rates = "client,t_s,rate_rps,cv,iat_dist,p1,p2\n"
	const burstHead = "Timestamp,Model,Request tokens,Response tokens\n"
	for name, c := range map[string]struct {
		files map[string]string
		o     Options
		want  string
	}{
		"missing":          {nil, Options{}, "trace: stat "},
		"from":             {nil, Options{From: -1}, "trace: from: got -1ns, want 0 or more"},
		"for":              {nil, Options{For: -1}, "trace: for: got -1ns"},
		"rate":             {nil, Options{Rate: math.NaN()}, "trace: rate: got NaN, want a factor"},
		"empty":            {map[string]string{"x": ""}, Options{}, "x:1: got an empty file"},
		"unknown":          {map[string]string{"x": "a,b\n"}, Options{}, `x:1: got "a,b", want the header of an Azure`},
		"part":             {map[string]string{"x": azure2024}, Options{From: time.Hour}, "x: got no rows from 1h0m0s on"},
		"mooncake json":    {map[string]string{"x": "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n{]\n"}, Options{}, "x:2: got no JSON object of a request"},
		"mooncake time":    {map[string]string{"x": "{\"input_length\": 1}\n"}, Options{}, "x:1: timestamp: want milliseconds"},
		"mooncake input":   {map[string]string{"x": "{\"timestamp\": 1}\n"}, Options{}, "x:1: input_length: want"},
		"mooncake output":  {map[string]string{"x": "{\"timestamp\": 1, \"input_length\": 2, \"output_length\": -1}\n"}, Options{}, "x:1: output_length: want"},
		"mooncake order":   {map[string]string{"x": "{\"timestamp\": 9, \"input_length\": 2, \"output_length\": 1}\n{\"timestamp\": 8, \"input_length\": 2, \"output_length\": 1}\n"}, Options{}, "x:2: timestamp went back from 9ms to 8ms"},
		"mooncake long":    {map[string]string{"x": "{" + strings.Repeat(" ", maxLine) + "}\n"}, Options{}, "x:1: bufio.Scanner: token too long, want lines of at most"},
		"burst header":     {map[string]string{"x": "Timestamp,Model\n"}, Options{}, `x:1: header: got "Timestamp,Model", want a column "Request tokens"`},
		"burst fields":     {map[string]string{"x": burstHead + "1\n"}, Options{}, "x:2: Model: got 1 fields, want at least 2"},
		"burst time":       {map[string]string{"x": burstHead + "NaN,m,1,1\n"}, Options{}, `x:2: Timestamp: got "NaN", want seconds`},
		"burst prompt":     {map[string]string{"x": burstHead + "1,m,x,1\n"}, Options{}, `x:2: Request tokens: got "x"`},
		"burst answer":     {map[string]string{"x": burstHead + "1,m,1,-1\n"}, Options{}, `x:2: Response tokens: got "-1"`},
		"burst order":      {map[string]string{"x": burstHead + "2,m,1,1\n1,m,1,1\n"}, Options{}, "x:3: Timestamp went back from 2s to 1s"},
		"burst none":       {map[string]string{"x": burstHead + "2,m,1,0\n"}, Options{}, "x:2: no rows with an answer"},
		"burst quote":      {map[string]string{"x": burstHead + "\"2,m,1,0\n"}, Options{}, "want CSV lines with Timestamp, Model"},
		"no folder":        {map[string]string{"": ""}, Options{}, "trace: a folder must be ServeGen's"},
		"servegen header":  {map[string]string{"traces_all_clients.csv": "a,b,c,d,e,f,g\n"}, Options{}, `traces_all_clients.csv:1: header: got "a,b,c,d,e,f,g"`},
		"servegen empty":   {map[string]string{"traces_all_clients.csv": rates}, Options{}, "traces_all_clients.csv:2: EOF"},
		"servegen client":  {map[string]string{"traces_all_clients.csv": rates + "x,0,1,1,,0,0\n"}, Options{}, `traces_all_clients.csv:2: client: got "x"`},
		"servegen rate":    {map[string]string{"traces_all_clients.csv": rates + "1,0,-1,1,,0,0\n"}, Options{}, `traces_all_clients.csv:2: rate_rps: got "-1"`},
		"servegen order":   {map[string]string{"traces_all_clients.csv": rates + "1,5,1,1,,0,0\n1,5,1,1,,0,0\n"}, Options{}, "traces_all_clients.csv:3: t_s of client 1 went back from 5s to 5s"},
		"servegen nobody":  {map[string]string{"traces_all_clients.csv": rates + "1,0,1,1,,0,0\n"}, Options{}, "got no rows from 0s on"},
		"chunk json":       {map[string]string{"traces_all_clients.csv": rates + "1,0,1,1,,0,0\n", "chunk-1-dataset.json": "[]"}, Options{}, "chunk-1-dataset.json: got no JSON object of windows"},
		"chunk window":     {map[string]string{"traces_all_clients.csv": rates + "1,0,1,1,,0,0\n", "chunk-1-dataset.json": `{"x": {}}`}, Options{}, `chunk-1-dataset.json: window "x": want its start in seconds`},
		"chunk input":      {map[string]string{"traces_all_clients.csv": rates + "1,0,1,1,,0,0\n", "chunk-1-dataset.json": `{"0": {"input_tokens": "x"}}`}, Options{}, `window 0: input_tokens: got "x", want {tokens: share, ...}`},
		"chunk output":     {map[string]string{"traces_all_clients.csv": rates + "1,0,1,1,,0,0\n", "chunk-1-dataset.json": `{"0": {"input_tokens": "{}", "output_tokens": "{1: -1}"}}`}, Options{}, `window 0: output_tokens: got "1: -1", want tokens: share`},
		"too many to draw": {map[string]string{"traces_all_clients.csv": rates + "1,0,1e9,1,Gamma,0,0\n", "chunk-1-dataset.json": `{"0": {"input_tokens": "{1: 1}", "output_tokens": "{1: 1}"}}`}, Options{}, "trace: client 1: got over 1000000 requests"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := write(t, nil)
			path := filepath.Join(dir, "none")
			if _, ok := c.files["x"]; ok {
				path = filepath.Join(write(t, c.files), "x")
			} else if c.files != nil {
				delete(c.files, "")
				path = write(t, c.files)
			}
			if _, err := Open(path, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func FuzzOpenFormats(f *testing.F) {
	for _, text := range []string{azure2024, mooncake, burstGPT} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := read("f", strings.NewReader(text), Options{Seed: 1})
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("got error %q, want the file first", err)
			}
			return
		}
		for i, r := range got.Rows {
			if r.PromptTokens < 0 || r.OutputTokens < 0 || r.At < 0 || i > 0 && r.At < got.Rows[i-1].At {
				t.Errorf("row %d: got %+v, want lengths and times that are 0 or more, in order", i, r)
			}
		}
	})
}

func FuzzServeGen(f *testing.F) {
	f.Add("client,t_s,rate_rps,cv,iat_dist,p1,p2\n0,0,5,1,Gamma,0.5,0.4\n", `{"0": {"input_tokens": "{172: 0.25, 17: 0.75}", "output_tokens": "{3: 1.0}"}}`)
	f.Fuzz(func(t *testing.T, rates, lengths string) {
		if _, err := readServeGenRates("r", strings.NewReader(rates)); err != nil && !strings.HasPrefix(err.Error(), "r:") {
			t.Errorf("got error %q, want the file first", err)
		}
		windows, err := parseLengths("l", []byte(lengths))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "l: ") {
				t.Errorf("got error %q, want the file first", err)
			}
			return
		}
		rng := rand.New(rand.NewPCG(1, 1))
		for _, w := range windows {
			if in, out, ok := draw(windows, w.from, rng); !ok || in < 0 || out < 0 {
				t.Errorf("drew %d and %d from %+v", in, out, w)
			}
		}
	})
}
