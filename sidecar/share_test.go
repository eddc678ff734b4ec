package sidecar

import (
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/size"
)

const gib = size.GiB

// shareSteps are readings in order, and what they must mean.
type shareStep struct {
	point  string
	tally  tally
	bytes  map[handover.TrainerID]size.Bytes
	others size.Bytes
}

func TestShareSortsAReadingIntoTrainersAndOthers(t *testing.T) {
	read := func(said, shown size.Bytes, acks int) claim {
		return claim{id: "a", said: said, shown: shown, read: true, acks: acks}
	}
	blind := func(id handover.TrainerID, said size.Bytes, acks int) claim {
		return claim{id: id, said: said, acks: acks}
	}
	late := func(c claim) claim { c.late = true; return c }
	only := func(b size.Bytes) map[handover.TrainerID]size.Bytes {
		return map[handover.TrainerID]size.Bytes{"a": b}
	}
	for name, steps := range map[string][]shareStep{
		"nobody": {
			{"what nobody explains is others'", tally{used: 3 * gib, engines: 2 * gib}, nil, gib},
			{"an engine that is not seen whole yet leaves the rest to others", tally{used: 3 * gib}, nil, 3 * gib},
			{"a reading older than the engine's word is no debt", tally{used: gib, engines: 2 * gib}, nil, 0},
		},
		"read": {
			{"a context is others'", tally{used: 10 * gib, engines: 4 * gib, claims: []claim{read(5*gib, 6*gib, 0)}}, only(5 * gib), gib},
			{"what it takes without a word is its own", tally{used: 12 * gib, engines: 4 * gib, claims: []claim{read(5*gib, 8*gib, 0)}}, only(7 * gib), gib},
			{"an ack alone moves nothing", tally{used: 12 * gib, engines: 4 * gib, claims: []claim{read(3*gib, 8*gib, 0)}}, only(7 * gib), gib},
			{"the fall does", tally{used: 8 * gib, engines: 4 * gib, claims: []claim{read(3*gib, 4*gib, 0)}}, only(3 * gib), gib},
			{"its end leaves nothing", tally{used: 4 * gib, engines: 4 * gib, claims: []claim{read(0, 0, 0)}}, only(0), 0},
		},
		"one ack too early": {
			{"at rest", tally{used: 6 * gib, claims: []claim{read(5*gib, 6*gib, 0)}}, only(5 * gib), gib},
			{"a reading just after an ack does not unlearn the context", tally{used: 6 * gib, claims: []claim{read(2*gib, 6*gib, 1)}}, only(2 * gib), 4 * gib},
			{"nor do later ones", tally{used: 3 * gib, claims: []claim{read(2*gib, 3*gib, 2)}}, only(2 * gib), gib},
		},
		"alone and not read": {
			{"what stands there is others'", tally{used: 10 * gib, engines: 4 * gib, claims: []claim{blind("a", 5*gib, 0)}}, only(5 * gib), gib},
			{"a word alone moves nothing", tally{used: 10 * gib, engines: 4 * gib, claims: []claim{blind("a", 2*gib, 0)}}, only(5 * gib), gib},
			{"an engine that has taken it, and says so, explains it", tally{used: 10 * gib, engines: 7 * gib, claims: []claim{blind("a", 2*gib, 0)}}, only(2 * gib), gib},
			{"the fall of the whole does", tally{used: 7 * gib, engines: 4 * gib, claims: []claim{blind("a", 2*gib, 0)}}, only(2 * gib), gib},
			{"less than its word is less", tally{used: 6 * gib, engines: 4 * gib, claims: []claim{blind("a", 2*gib, 0)}}, only(gib), gib},
		},
		"two and not read": {
			{"each by its word", tally{used: 9 * gib, claims: []claim{blind("a", 5*gib, 0), blind("b", 3*gib, 0)}}, map[handover.TrainerID]size.Bytes{"a": 5 * gib, "b": 3 * gib}, gib},
			{"what one keeps is held against both", tally{used: 9 * gib, claims: []claim{blind("a", 2*gib, 0), blind("b", 3*gib, 0)}}, map[handover.TrainerID]size.Bytes{"a": 5 * gib, "b": 6 * gib}, gib},
			{"once it is gone against none", tally{used: 6 * gib, claims: []claim{blind("a", 2*gib, 0), blind("b", 3*gib, 0)}}, map[handover.TrainerID]size.Bytes{"a": 2 * gib, "b": 3 * gib}, gib},
			{"who leaves takes its part along", tally{used: 3 * gib, claims: []claim{blind("b", 3*gib, 0)}}, map[handover.TrainerID]size.Bytes{"b": 3 * gib}, 0},
		},
		"a reading from before the word": {
			{"at rest", tally{used: 6 * gib, claims: []claim{read(5*gib, 6*gib, 0)}}, only(5 * gib), gib},
			{"teaches nothing", tally{used: 9 * gib, claims: []claim{late(read(8*gib, 6*gib, 1))}}, only(5 * gib), 4 * gib},
			{"and the next one does not lack what it would have taught", tally{used: 9 * gib, claims: []claim{read(8*gib, 9*gib, 1)}}, only(8 * gib), gib},
		},
		"the first reading is from before the word": {
			{"all is its own", tally{used: 6 * gib, claims: []claim{late(read(5*gib, 6*gib, 0))}}, only(6 * gib), 0},
			{"until one teaches", tally{used: 6 * gib, claims: []claim{read(5*gib, 6*gib, 0)}}, only(5 * gib), gib},
			{"also where it is not read", tally{used: 6 * gib, claims: []claim{late(blind("a", 5*gib, 0))}}, only(6 * gib), 0},
		},
		"slop": {
			{"a little is breath", tally{used: 6*gib + 8*size.MiB, claims: []claim{read(5*gib, 6*gib, 0)}}, only(5 * gib), gib + 32*size.MiB},
			{"also above", tally{used: 6*gib + 16*size.MiB, claims: []claim{read(5*gib, 6*gib+8*size.MiB, 0)}}, only(5 * gib), gib + 32*size.MiB},
			{"a step back is not worth a word", tally{used: 6 * gib, claims: []claim{read(5*gib, 6*gib, 0)}}, only(5 * gib), gib + 32*size.MiB},
			{"two are", tally{used: 5*gib + 960*size.MiB, claims: []claim{read(5*gib, 6*gib, 0)}}, only(5 * gib), gib - 64*size.MiB},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := share{slop: 16 * size.MiB}
			for i, step := range steps {
				got := s.settle(step.tally)
				if !maps.Equal(got.trainers, step.bytes) || got.others != step.others {
					t.Errorf("%d, %s:\ngot  %v, others %v\nwant %v, others %v", i, step.point, got.trainers, got.others, step.bytes, step.others)
				}
			}
		})
	}
}

// Whatever trainers say and whenever, no byte in use is counted for nobody.
func TestShareLosesNoByte(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.Int64Range(0, int64(40*gib))
		s := share{slop: size.Bytes(rapid.Int64Range(0, int64(gib)).Draw(t, "slop"))}
		for range rapid.IntRange(1, 20).Draw(t, "readings") {
			in := tally{used: size.Bytes(bytes.Draw(t, "used")), engines: size.Bytes(bytes.Draw(t, "engines"))}
			for i := range rapid.IntRange(0, 3).Draw(t, "trainers") {
				in.claims = append(in.claims, claim{
					id: handover.TrainerID(fmt.Sprint(i)), said: size.Bytes(bytes.Draw(t, "said")), acks: rapid.IntRange(0, 3).Draw(t, "acks"),
					shown: size.Bytes(bytes.Draw(t, "shown")), read: rapid.Bool().Draw(t, "read"), late: rapid.Bool().Draw(t, "late"),
				})
			}
			out := s.settle(in)
			sum := in.engines + out.others
			for id, b := range out.trainers {
				if b < 0 {
					t.Fatalf("trainer %s has %v", id, b)
				}
				sum += b
			}
			if len(out.trainers) != len(in.claims) || out.others < 0 || sum < in.used {
				t.Fatalf("%v in use, %v accounted for: %+v of %+v", in.used, sum, out, in)
			}
		}
	})
}
