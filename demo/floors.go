package demo

import (
	"sort"
	"time"

	"github.com/lull-project/lull/size"
)

// floors are the floors that a training job was granted, in order of time. A
// rise happens between two batches and is logged when the step that follows it
// has ended, so a line's floor counts from the line before it.
type floors []floorSpan

// floorSpan is the highest floor granted until Until.
type floorSpan struct {
	Until time.Time
	Bytes size.Bytes
}

// floors are taken from the ready line and all steps logged so far.
func (l *trainLog) floors() floors {
	if l.ready == nil {
		return nil
	}
	list := floors{{Until: l.ready.at(), Bytes: bytesOf(l.ready.Floor)}}
	for _, s := range l.steps {
		most := max(list[len(list)-1].Bytes, bytesOf(s.Floor))
		list = append(list, floorSpan{Until: s.at(), Bytes: most})
	}
	return list
}

// at is the largest floor logged up to the first line at or after a moment:
// the floor in force then. After the last line it is the last line's; without
// lines it is 0.
func (f floors) at(t time.Time) size.Bytes {
	if len(f) == 0 {
		return 0
	}
	i := sort.Search(len(f), func(i int) bool { return !f[i].Until.Before(t) })
	return f[min(i, len(f)-1)].Bytes
}
