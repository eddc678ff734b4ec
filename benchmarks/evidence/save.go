package evidence

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Save writes a result as JSON and says so on w; an empty file name writes
// nothing. The error begins with the benchmark's name.
func Save(w io.Writer, bench, file string, result any) error {
	if file == "" {
		return nil
	}
	b, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: encode result: %w", bench, err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("%s: save: %w", bench, err)
	}
	if err := os.WriteFile(file, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("%s: save: %w", bench, err)
	}
	fmt.Fprintln(w, "wrote", file)
	return nil
}
