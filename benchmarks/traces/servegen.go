package traces

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	serveGenRates = "traces_all_clients.csv"
	// maxDrawn bounds the requests drawn from one folder.
	maxDrawn = 1_000_000
)

var serveGenHeader = []string{"client", "t_s", "rate_rps", "cv", "iat_dist", "p1", "p2"}

// clientRate is how a client's requests arrive from a time on.
type clientRate struct {
	from  time.Duration
	rate  float64 // requests a second
	dist  string  // of the gaps: "Gamma", "Weibull", else exponential
	shape float64
}

// openServeGen draws requests from ServeGen's description of them: per client,
// gaps of the published family and shape at the published rate, and lengths from
// the published histograms. Clients without histograms are left out.
func openServeGen(dir string, o Options) ([]Row, error) {
	f, err := os.Open(filepath.Join(dir, serveGenRates))
	if err != nil {
		return nil, fmt.Errorf("trace: a folder must be ServeGen's: %w", err)
	}
	defer f.Close()
	rates, err := readServeGenRates(serveGenRates, f)
	if err != nil {
		return nil, err
	}
	if o.For == 0 {
		o.For = time.Hour // a drawn trace has no end of its own
	}
	var rows []Row
	for _, client := range slices.Sorted(keys(rates)) {
		name := fmt.Sprintf("chunk-%d-dataset.json", client)
		text, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("trace: %w", err)
		}
		lengths, err := parseLengths(name, text)
		if err != nil {
			return nil, err
		}
		rng := rand.New(rand.NewPCG(o.Seed, uint64(client)))
		if rows, err = drawClient(rows, client, rates[client], lengths, o, rng); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(a.At, b.At) })
	o.Rate, o.From, o.For = 1, 0, 0 // the draw has done all of it
	return part(dir, rows, o)
}

func keys(m map[int][]clientRate) func(func(int) bool) {
	return func(yield func(int) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// drawClient adds one client's requests.
func drawClient(rows []Row, client int, rates []clientRate, lengths []lengthWindow, o Options, rng *rand.Rand) ([]Row, error) {
	end := o.From + o.For
	for i, w := range rates {
		from, to := max(w.from, o.From), end
		if i+1 < len(rates) {
			to = min(to, rates[i+1].from)
		}
		if w.rate <= 0 || from >= to {
			continue
		}
		for at := from + w.gap(rng, o.Rate); at < to; at += w.gap(rng, o.Rate) {
			prompt, output, ok := draw(lengths, at, rng)
			if !ok {
				break
			}
			if len(rows) == maxDrawn {
				return nil, fmt.Errorf("trace: client %d: got over %d requests, want a shorter part or a lower rate", client, maxDrawn)
			}
			rows = append(rows, Row{At: at - o.From, PromptTokens: prompt, OutputTokens: output, Model: "client-" + strconv.Itoa(client)})
		}
	}
	return rows, nil
}

// gap draws the time to the next request at factor times the rate.
func (w clientRate) gap(rng *rand.Rand, factor float64) time.Duration {
	x := 0.0 // of mean 1
	switch {
	case w.dist == "Gamma" && w.shape > 0:
		x = gamma(rng, w.shape) / w.shape
	case w.dist == "Weibull" && w.shape > 0:
		x = math.Pow(rng.ExpFloat64(), 1/w.shape) / math.Gamma(1+1/w.shape)
	default:
		x = rng.ExpFloat64()
	}
	return time.Duration(min(x/(w.rate*factor), 1e9) * float64(time.Second))
}

// gamma draws by Marsaglia and Tsang (2000).
func gamma(rng *rand.Rand, shape float64) float64 {
	if shape < 1 {
		return gamma(rng, shape+1) * math.Pow(rng.Float64(), 1/shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := rng.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if u := rng.Float64(); u > 0 && math.Log(u) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}

// readServeGenRates reads the rates of all clients.
func readServeGenRates(name string, r io.Reader) (map[int][]clientRate, error) {
	cr := csv.NewReader(r)
	cr.FieldsPerRecord = len(serveGenHeader)
	cr.ReuseRecord = true
	want := strings.Join(serveGenHeader, ",")
	rates := map[int][]clientRate{}
	for line := 1; ; line++ {
		rec, err := cr.Read()
		if errors.Is(err, io.EOF) && line > 2 {
			return rates, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w, want CSV lines %s", name, line, err, want)
		}
		if line == 1 {
			if got := strings.Join(rec, ","); got != want {
				return nil, fmt.Errorf("%s:1: header: got %q, want %q", name, got, want)
			}
			continue
		}
		client, w, err := parseRate(rec)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, line, err)
		}
		if n := len(rates[client]); n > 0 && w.from <= rates[client][n-1].from {
			return nil, fmt.Errorf("%s:%d: t_s of client %d went back from %v to %v, want rows in order of time", name, line, client, rates[client][n-1].from, w.from)
		}
		rates[client] = append(rates[client], w)
	}
}

func parseRate(rec []string) (client int, w clientRate, err error) {
	client, err = strconv.Atoi(rec[0])
	if err != nil || client < 0 {
		return 0, w, fmt.Errorf("client: got %q, want a whole number, 0 or more", rec[0])
	}
	var v [3]float64
	for i, column := range []int{1, 2, 5} {
		x, err := strconv.ParseFloat(rec[column], 64)
		if err != nil || !(x >= 0 && x < math.MaxInt32) {
			return 0, w, fmt.Errorf("%s: got %q, want a number, 0 or more", serveGenHeader[column], rec[column])
		}
		v[i] = x
	}
	return client, clientRate{from: time.Duration(v[0] * float64(time.Second)), rate: v[1], dist: rec[4], shape: v[2]}, nil
}
