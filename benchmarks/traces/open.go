package traces

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Options say which part of a trace is read, and how what it leaves open is
// drawn.
type Options struct {
	// Seed draws arrivals inside a timestamp grid, and those of ServeGen.
	Seed uint64
	// From and For choose a part; a For of 0 reads to the end.
	From, For time.Duration
	// Rate multiplies the rate of arrivals, 0 is 1: gaps shrink, lengths stay.
	Rate float64
}

// Validate names the key, the value and the rule of the first thing wrong.
func (o Options) Validate() error {
	switch {
	case o.From < 0:
		return fmt.Errorf("trace: from: got %v, want 0 or more", o.From)
	case o.For < 0:
		return fmt.Errorf("trace: for: got %v, want 0 (to the end) or more", o.For)
	case !(o.Rate >= 0 && o.Rate <= 1e6):
		return fmt.Errorf("trace: rate: got %v, want a factor from 0 (as it is) to 1e6", o.Rate)
	}
	return nil
}

// Trace is what Open read.
type Trace struct {
	// Format is the kind of file: "azure", "mooncake", "burstgpt" or "servegen".
	Format string
	Rows   []Row
}

// Rows is Open, and for an empty path the slice that comes with Lull; source says
// whose rows they are.
func Rows(path string, o Options) (rows []Row, source string, err error) {
	if path == "" {
		rows, err = AzureConversation()
		return rows, AzureConversationSource, err
	}
	t, err := Open(path, o)
	return t.Rows, path + " (" + t.Format + ")", err
}

// Open reads a file of Azure 2023 or 2024, Mooncake or BurstGPT, told apart by
// its first line, or a folder of ServeGen. Arrivals count from the first row
// that is read.
func Open(path string, o Options) (Trace, error) {
	if err := o.Validate(); err != nil {
		return Trace{}, err
	}
	if o.Rate == 0 {
		o.Rate = 1
	}
	info, err := os.Stat(path)
	if err != nil {
		return Trace{}, fmt.Errorf("trace: %w", err)
	}
	if info.IsDir() {
		rows, err := openServeGen(path, o)
		return Trace{Format: "servegen", Rows: rows}, err
	}
	f, err := os.Open(path)
	if err != nil {
		return Trace{}, fmt.Errorf("trace: %w", err)
	}
	defer f.Close()
	return read(filepath.Base(path), f, o)
}

// read tells formats apart by the first line and cuts the part asked for.
func read(name string, r io.Reader, o Options) (Trace, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	head, err := br.Peek(512)
	if err != nil && len(head) == 0 {
		return Trace{}, fmt.Errorf("%s:1: got an empty file, want a trace", name)
	}
	line, _, _ := bytes.Cut(bytes.TrimPrefix(head, []byte("\ufeff")), []byte("\n"))
	until := forever
	if o.For > 0 {
		until = o.From + o.For
	}
	t := Trace{}
	switch first := strings.TrimSpace(string(line)); {
	case strings.HasPrefix(first, "{"):
		t.Format = "mooncake"
		t.Rows, err = readMooncake(name, br, rand.New(rand.NewPCG(o.Seed, 1)))
	case strings.HasPrefix(first, "Timestamp,"):
		t.Format = "burstgpt"
		t.Rows, err = readBurstGPT(name, br, until)
	case strings.HasPrefix(first, "TIMESTAMP,"):
		t.Format = "azure"
		t.Rows, err = readAzure(name, br, until)
	default:
		err = fmt.Errorf("%s:1: got %.60q, want the header of an Azure (TIMESTAMP,...) or BurstGPT (Timestamp,...) file, or a Mooncake line of JSON", name, first)
	}
	if err != nil {
		return Trace{}, err
	}
	t.Rows, err = part(name, t.Rows, o)
	return t, err
}

// part cuts and scales, and counts arrivals from the first row left.
func part(name string, rows []Row, o Options) ([]Row, error) {
	rows = slices.DeleteFunc(rows, func(r Row) bool { return r.At < o.From || o.For > 0 && r.At >= o.From+o.For })
	if len(rows) == 0 {
		return nil, fmt.Errorf("%s: got no rows from %v on for %v, want at least one", name, o.From, o.For)
	}
	first := rows[0].At
	rate := o.Rate
	if rate == 0 {
		rate = 1
	}
	for i := range rows {
		rows[i].At = time.Duration(float64(rows[i].At-first) / rate)
	}
	return rows, nil
}
