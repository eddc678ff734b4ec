package sidecar

import (
	"slices"
	"strings"

	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
)

// A GPU's books are not the ledger's: a process's figure holds its CUDA context and
// whatever its libraries keep, which the trainer's own word (floor and held) does not
// know, and in a container the driver may give no figure at all. share sorts one
// reading into trainers' bytes in the ledger's sense and others': every byte that is
// not free is in exactly one of them or in the engines', so what nobody explains is
// taken off the capacity and a wrong word lends nothing.

const (
	// othersUnit is the step of what is taken off a capacity: contexts and workspaces
	// breathe by a few MiB, and each change of capacity is a decision.
	othersUnit = 32 * size.MiB
	// overheadSamples is over how many acks the overhead is the median. A reading just
	// after an ack may still show what is being freed, another comes before memory
	// that was granted is taken.
	overheadSamples = 8
)

// claim is one trainer on the GPU.
type claim struct {
	id   handover.TrainerID
	said size.Bytes // floor and held by its own word, 0 once its process has ended
	acks int        // how often it has said so
	late bool       // the reading began before its last word
	// shown is the driver's figure; read is false where there is none.
	shown size.Bytes
	read  bool
}

// tally is one reading. engines is what they hold and the core knows of.
type tally struct {
	used, engines size.Bytes
	claims        []claim
}

// settled is the same in the ledger's sense.
type settled struct {
	trainers map[handover.TrainerID]size.Bytes
	others   size.Bytes // what is taken off the capacity
}

// share keeps what it has learned of one GPU. It is for one goroutine.
type share struct {
	// slop is by how much the device's word may differ from a trainer's own without
	// being held against it; it counts as others'.
	slop    size.Bytes
	own     map[handover.TrainerID]*overhead
	group   *overhead // of the trainers without a figure, together
	members string    // who they are
	charged size.Bytes
}

// settle sorts one reading.
func (s *share) settle(a tally) settled {
	out := settled{trainers: map[handover.TrainerID]size.Bytes{}}
	left := a.used - a.engines
	var blind []claim
	known := map[handover.TrainerID]*overhead{}
	for _, c := range a.claims {
		if !c.read {
			blind = append(blind, c)
			continue
		}
		o := s.own[c.id]
		if o == nil {
			o = &overhead{}
		}
		known[c.id] = o
		b := s.near(max(0, c.shown-o.learn(c.shown-c.said, c.acks, c.late)), c.said)
		out.trainers[c.id] = b
		left -= b
	}
	s.own = known // those that left are forgotten
	left -= s.settleBlind(blind, left, out.trainers)
	out.others = s.charge(max(0, left))
	return out
}

// settleBlind conserves: what is left of the device beyond what they say and what
// stood there at their last acks is each one's, for who of them has it nobody knows.
// It returns what they have together.
func (s *share) settleBlind(blind []claim, left size.Bytes, into map[handover.TrainerID]size.Bytes) size.Bytes {
	var names []string
	var said size.Bytes
	acks, late := 0, false
	for _, c := range blind {
		names, said, acks, late = append(names, string(c.id)), said+c.said, acks+c.acks, late || c.late
	}
	slices.Sort(names)
	if members := strings.Join(names, "\n"); s.group == nil || members != s.members {
		s.group, s.members = &overhead{}, members
	}
	if len(blind) == 0 {
		return 0
	}
	all := s.near(max(0, left-s.group.learn(left-said, acks, late)), said)
	for _, c := range blind {
		into[c.id] = max(0, min(c.said+max(0, all-said), all))
	}
	return min(all, max(0, left))
}

// near is said where shown differs from it by no more than slop.
func (s *share) near(shown, said size.Bytes) size.Bytes {
	if d := shown - said; d <= s.slop && d >= -s.slop {
		return said
	}
	return shown
}

// charge is what is taken off: never less than others has, and it comes down by whole
// units only.
func (s *share) charge(others size.Bytes) size.Bytes {
	if up := others.CeilTo(othersUnit); up > s.charged || up < s.charged-othersUnit {
		s.charged = up
	}
	return s.charged
}

// overhead is what a process has on the device beyond its own word, as of its last
// acks: only there the word is as fresh as the reading.
type overhead struct {
	last []size.Bytes
	acks int
}

// learn takes the difference where there was an ack since, and returns what is known,
// 0 before the first. A reading that began before the word teaches nothing.
func (o *overhead) learn(beyond size.Bytes, acks int, late bool) size.Bytes {
	if late && len(o.last) == 0 {
		return 0
	}
	if !late && (len(o.last) == 0 || acks != o.acks) {
		o.acks = acks
		o.last = append(o.last, max(0, beyond))
		o.last = o.last[max(0, len(o.last)-overheadSamples):]
	}
	sorted := slices.Sorted(slices.Values(o.last))
	return sorted[len(sorted)/2]
}
