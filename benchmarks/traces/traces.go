package traces

import (
	"bytes"
	_ "embed" // for the trace files
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

//go:embed azure_llm_2023_conv.csv
var azureConversation []byte

// AzureConversationSource is the one-line credit that a report prints beside
// figures made with AzureConversation.
const AzureConversationSource = "Azure LLM inference trace 2023, conversation (Microsoft, Azure Public Dataset, CC-BY 4.0), from t = 300 s"

// Row is one request of a trace.
type Row struct {
	// At is the arrival, counted from the first row.
	At time.Duration
	// PromptTokens and OutputTokens are the lengths of prompt and answer.
	PromptTokens, OutputTokens int
	// Model names what answered, where the trace tells several apart.
	Model string
}

// AzureConversation returns 800 consecutive requests of the Azure 2023
// conversation trace, about 180 s of it.
func AzureConversation() ([]Row, error) {
	return Read("azure_llm_2023_conv.csv", bytes.NewReader(azureConversation))
}

var header = []string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}

// timestamps have 7 decimals in the files of 2023, and a zone in those of 2024.
const (
	timestampLayout = "2006-01-02 15:04:05.9999999"
	zonedLayout     = timestampLayout + "-07:00"
)

// forever reads a trace to its end.
const forever = time.Duration(math.MaxInt64)

// Read reads a trace in the format of the Azure LLM 2023 and 2024 files: a
// header line, then TIMESTAMP,ContextTokens,GeneratedTokens in order of time.
// Errors name the file and the line: "name:118: ...".
func Read(name string, r io.Reader) ([]Row, error) { return readAzure(name, r, forever) }

// readAzure stops at the first row after until.
func readAzure(name string, r io.Reader, until time.Duration) ([]Row, error) {
	cr := csv.NewReader(r)
	cr.FieldsPerRecord = -1 // counted here, for an error with file and line
	cr.ReuseRecord = true
	got, err := cr.Read()
	if err != nil {
		return nil, lineError(name, 1, "header", err)
	}
	got[0] = strings.TrimPrefix(got[0], "\ufeff")
	if strings.Join(got, ",") != strings.Join(header, ",") {
		return nil, fmt.Errorf("%s:1: header: got %q, want %q", name, strings.Join(got, ","), strings.Join(header, ","))
	}
	rows, err := readRows(name, cr, until)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("%s:2: no rows after the header, want at least one", name)
	}
	return rows, nil
}

func readRows(name string, cr *csv.Reader, until time.Duration) ([]Row, error) {
	var (
		rows  []Row
		start time.Time
		line  = 1
	)
	for {
		rec, err := cr.Read()
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return nil, lineError(name, line+1, "row", err)
		}
		line, _ = cr.FieldPos(0)
		at, row, err := parse(rec)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, line, err)
		}
		if start.IsZero() {
			start = at
		}
		row.At = at.Sub(start)
		if n := len(rows); n > 0 && row.At < rows[n-1].At {
			return nil, fmt.Errorf("%s:%d: TIMESTAMP went back from %v to %v after the first row, want rows in order of time", name, line, rows[n-1].At, row.At)
		}
		if row.At > until {
			return rows, nil
		}
		rows = append(rows, row)
	}
}

// parse reads one record; the caller adds file and line to its errors.
func parse(rec []string) (time.Time, Row, error) {
	if len(rec) != len(header) {
		return time.Time{}, Row{}, fmt.Errorf("got %d fields, want %d (%s)", len(rec), len(header), strings.Join(header, ","))
	}
	at, err := time.Parse(timestampLayout, rec[0])
	if err != nil {
		if zoned, zerr := time.Parse(zonedLayout, rec[0]); zerr == nil {
			at, err = zoned, nil
		}
	}
	if err != nil {
		return time.Time{}, Row{}, fmt.Errorf("TIMESTAMP: got %q, want a time such as 2023-11-16 18:15:46.6805900: %w", rec[0], err)
	}
	var row Row
	for i, dst := range []*int{&row.PromptTokens, &row.OutputTokens} {
		n, err := strconv.Atoi(rec[i+1])
		if err != nil || n < 0 {
			return time.Time{}, Row{}, fmt.Errorf("%s: got %q, want a whole number of tokens, 0 or more", header[i+1], rec[i+1])
		}
		*dst = n
	}
	return at, row, nil
}

// lineError adds file and line to an error of the CSV reader, using its own
// line where it knows one.
func lineError(name string, line int, what string, err error) error {
	var pe *csv.ParseError
	if errors.As(err, &pe) {
		line, err = pe.Line, pe.Err
	}
	return fmt.Errorf("%s:%d: %s: %w, want CSV lines %s", name, line, what, err, strings.Join(header, ","))
}
