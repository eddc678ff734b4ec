package sidecar

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/lull-project/lull/config"
)

// watchEvery is how often the config's file is looked at. What has changed is read
// at the next look at which it stands still: an editor may write in pieces.
const watchEvery = time.Second

// onRequest is the reason of a reload that somebody wished.
const onRequest = "asked"

// Follow makes Run reload the config: when ReloadNow asks for it, and, with a
// path, when that file changes. load reads and validates it. Call it before Run.
func (s *Sidecar) Follow(path string, load func() (config.File, error)) {
	s.reload.path, s.reload.load = path, load
}

// ReloadNow asks for a reload and does not wait for it.
func (s *Sidecar) ReloadNow() {
	select {
	case s.reload.asked <- struct{}{}:
	default: // one is asked for already
	}
}

// follow reloads until ctx ends.
func (s *Sidecar) follow(ctx context.Context) {
	var looks <-chan time.Time
	watched := &fileWatch{path: s.reload.path}
	if s.reload.path != "" {
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		looks = tick.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.reload.asked:
			s.reloadNow(onRequest)
		case <-looks:
			if watched.changed() {
				s.reloadNow("file changed")
			}
		}
	}
}

// reloadNow reads the config and takes it over, and says in the log what became
// of it. Keys are named and values are not, but for the one that is wrong.
func (s *Sidecar) reloadNow(why string) {
	if s.reload.load == nil {
		s.log.Warn("config not reloaded: it stands on the command line, in no file", "why", why)
		return
	}
	file, err := s.reload.load()
	var changed, restart []string
	if err == nil {
		changed, restart, err = s.Reload(file)
	}
	if err != nil {
		s.metrics.ConfigReload(false)
		s.loop.view.problem("config", "the file is refused and the old one stays, but a restart would fail: "+err.Error())
		s.log.Error("config refused; the old one stays", "why", why, "err", err)
		return
	}
	s.loop.view.clearProblem("config")
	if len(changed)+len(restart) > 0 {
		for _, w := range file.Warnings() {
			s.log.Warn(w)
		}
	}
	if len(restart) > 0 {
		s.log.Warn("these keys need a restart; their old values stay", "keys", restart)
	}
	level := slog.LevelInfo
	if len(changed)+len(restart) == 0 && why != onRequest {
		level = slog.LevelDebug // above all at the start
	} else {
		s.metrics.ConfigReload(true)
	}
	s.log.Log(context.Background(), level, "config reloaded", "why", why, "changed", changed)
}

// fileWatch tells when a file has changed and stands still again.
type fileWatch struct {
	path       string
	seen, told stamp
}

// stamp is what shows that a file is another: content written in place has
// another time or size, a file put in its place (also by a link, as Kubernetes
// does) another identity.
type stamp struct {
	info os.FileInfo // nil while there is none
	time time.Time
	size int64
}

func (a stamp) same(b stamp) bool {
	if a.info == nil || b.info == nil {
		return a.info == nil && b.info == nil
	}
	return a.time.Equal(b.time) && a.size == b.size && os.SameFile(a.info, b.info)
}

// changed looks at the file: true once for every change, at the first look that
// finds it as the look before did. A file that is away has not changed yet. The
// file as it is at first counts as a change: it may have changed since somebody
// read it.
func (w *fileWatch) changed() bool {
	var now stamp
	if info, err := os.Stat(w.path); err == nil {
		now = stamp{info, info.ModTime(), info.Size()}
	}
	still := now.same(w.seen)
	w.seen = now
	if !still || now.info == nil || now.same(w.told) {
		return false
	}
	w.told = now
	return true
}
