package traces

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// burstFields are the columns of BurstGPT that are read, by their names: later
// files have more columns than the first.
var burstFields = []string{"Timestamp", "Model", "Request tokens", "Response tokens"}

// readBurstGPT reads Timestamp (s), Model, Request tokens and Response tokens in
// order of time. Rows without an answer are failures of the service and are left
// out, as the publishers advise.
func readBurstGPT(name string, r io.Reader, until time.Duration) ([]Row, error) {
	cr := csv.NewReader(r)
	cr.FieldsPerRecord = -1
	cr.ReuseRecord = true
	head, err := cr.Read()
	if err != nil {
		return nil, burstError(name, 1, err)
	}
	var column [4]int
	for i, field := range burstFields {
		if column[i] = slices.Index(head, field); column[i] < 0 {
			return nil, fmt.Errorf("%s:1: header: got %q, want a column %q", name, strings.Join(head, ","), field)
		}
	}
	var rows []Row
	first, last := time.Duration(-1), time.Duration(0)
	for line := 2; ; line++ {
		rec, err := cr.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, burstError(name, line, err)
		}
		line, _ = cr.FieldPos(0)
		row, err := parseBurst(rec, column)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, line, err)
		}
		if row.At < last {
			return nil, fmt.Errorf("%s:%d: Timestamp went back from %v to %v, want rows in order of time", name, line, last, row.At)
		}
		last = row.At
		if first < 0 {
			first = row.At
		}
		if row.At -= first; row.At > until {
			break
		}
		if row.OutputTokens > 0 {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("%s:2: no rows with an answer after the header, want at least one", name)
	}
	return rows, nil
}

// parseBurst reads one record; the caller adds file and line to its errors.
func parseBurst(rec []string, column [4]int) (Row, error) {
	var field [4]string
	for i, c := range column {
		if c >= len(rec) {
			return Row{}, fmt.Errorf("%s: got %d fields, want at least %d", burstFields[i], len(rec), c+1)
		}
		field[i] = rec[c]
	}
	s, err := strconv.ParseFloat(field[0], 64)
	if err != nil || !(s >= 0 && s < math.MaxInt32) {
		return Row{}, fmt.Errorf("%s: got %q, want seconds, 0 or more", burstFields[0], field[0])
	}
	row := Row{At: time.Duration(s * float64(time.Second)), Model: field[1]}
	for i, dst := range []*int{&row.PromptTokens, &row.OutputTokens} {
		n, err := strconv.Atoi(field[2+i])
		if err != nil || n < 0 {
			return Row{}, fmt.Errorf("%s: got %q, want a whole number of tokens, 0 or more", burstFields[2+i], field[2+i])
		}
		*dst = n
	}
	return row, nil
}

func burstError(name string, line int, err error) error {
	var pe *csv.ParseError
	if errors.As(err, &pe) {
		line, err = pe.Line, pe.Err
	}
	return fmt.Errorf("%s:%d: %w, want CSV lines with %s", name, line, err, strings.Join(burstFields, ", "))
}
