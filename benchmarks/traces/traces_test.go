package traces

import (
	"strings"
	"testing"
	"time"
)

func TestEmbeddedTraceIsInOrderAndHasItsRows(t *testing.T) {
	rows, err := AzureConversation()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(rows), 800; got != want {
		t.Fatalf("rows: got %d, want %d", got, want)
	}
	if rows[0].At != 0 {
		t.Errorf("first arrival: got %v, want 0", rows[0].At)
	}
	if got := rows[249].At; got < 50*time.Second || got > 60*time.Second {
		t.Errorf("arrival of row 250: got %v, want 50 s to 60 s, as demo sizes assume", got)
	}
}

func TestReadErrorsNameFileLineAndRule(t *testing.T) {
	const h = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	const ok = "2023-11-16 18:15:46.6805900,374,44\n"
	for name, tc := range map[string]struct{ in, want string }{
		"empty":       {"", "x.csv:1: header: EOF, want CSV lines TIMESTAMP"},
		"header":      {"a,b\n", `x.csv:1: header: got "a,b", want "TIMESTAMP,ContextTokens,GeneratedTokens"`},
		"no rows":     {h, "x.csv:2: no rows after the header"},
		"fields":      {h + ok + "2023-11-16 18:15:47.0,1\n", "x.csv:3: got 2 fields, want 3"},
		"time":        {h + "yesterday,1,2\n", `x.csv:2: TIMESTAMP: got "yesterday", want a time such as`},
		"prompt":      {h + "2023-11-16 18:15:47.0,many,2\n", `x.csv:2: ContextTokens: got "many", want a whole number`},
		"output":      {h + "2023-11-16 18:15:47.0,1,-2\n", `x.csv:2: GeneratedTokens: got "-2", want a whole number`},
		"order":       {h + ok + "2023-11-16 18:15:40.0,1,2\n", "x.csv:3: TIMESTAMP went back from 0s to -6.68059s"},
		"quote":       {h + ok + "\"2023,1,2\n", "x.csv:3: row: "},
		"blank lines": {h + "\n\n" + ok + "\nx,1,2\n", "x.csv:6: TIMESTAMP"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read("x.csv", strings.NewReader(tc.in))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want it to contain %q", err, tc.want)
			}
		})
	}
}

func TestReadAcceptsTheByteOrderMarkOfThePublishedFiles(t *testing.T) {
	rows, err := Read("x.csv", strings.NewReader("\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"))
	if err != nil || len(rows) != 1 || rows[0].PromptTokens != 374 || rows[0].OutputTokens != 44 {
		t.Fatalf("got %v, %v, want one row of 374 and 44 tokens", rows, err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
	f.Fuzz(func(t *testing.T, in string) {
		rows, err := Read("f.csv", strings.NewReader(in))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f.csv:") {
				t.Errorf("got error %q, want file and line first", err)
			}
			return
		}
		for i, r := range rows {
			if r.PromptTokens < 0 || r.OutputTokens < 0 || i > 0 && r.At < rows[i-1].At {
				t.Errorf("row %d: got %+v, want non-negative lengths in order of time", i, r)
			}
		}
	})
}
