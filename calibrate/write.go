package calibrate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/lull-project/lull/config"
)

// edited is the text of a config file with other objectives.
func edited(path string, l config.Limits) ([]byte, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("calibrate: %w; want a config file that is there (`lull config --print-default > %s` makes one)", err, path)
	}
	if err != nil {
		return nil, fmt.Errorf("calibrate: %w; nothing is written", err)
	}
	text, err = config.SetObjective(text, l)
	if err != nil {
		return nil, fmt.Errorf("calibrate: %s: %w", path, err)
	}
	return text, nil
}

// replaceFile replaces a file's text in one step, so that nobody reads half of
// it, and keeps its permissions. A link stays a link.
func replaceFile(path string, text []byte) error {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	was, err := os.Stat(target)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(target), ".lull-calibrate-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(text)
	err = errors.Join(err, tmp.Chmod(was.Mode().Perm()), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), target)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(tmp.Name()))
	}
	return err
}
