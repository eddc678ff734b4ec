package kvbudget

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestAnswerIsJudgedByItsClass(t *testing.T) {
	a := NewAnswers()
	for range 300 {
		a.Learn("chat", "", 0, 100, 400)
		a.Learn("chat", "", 16, 100, 10)
		a.Learn("code", "", 0, 3000, 20)
	}
	if p := a.Class("chat", "", 0, 100).Still(0, 100, 0); p < 0.95 {
		t.Errorf("a chat answer goes beyond 100 tokens with probability %v, want about 1", p)
	}
	if p := a.Class("code", "", 0, 3000).Still(0, 100, 0); p > 0.1 {
		t.Errorf("a code answer goes beyond 100 tokens with probability %v, want about 0", p)
	}
	if p := a.Class("chat", "", 16, 100).Still(0, 20, 16); p != 0 {
		t.Errorf("an answer goes beyond its limit with probability %v", p)
	}
}

func TestNewClassLeansOnItsModel(t *testing.T) {
	a := NewAnswers()
	before := a.Class("chat", "", 0, 5).Still(0, 200, 0)
	if before < 0.2 || before > 0.6 {
		t.Errorf("before the first sample: %v, want the prior's, exp(-1)", before)
	}
	for range 300 {
		a.Learn("chat", "", 0, 100, 2000)
	}
	if p := a.Class("chat", "", 0, 50_000).Still(0, 200, 0); p < 0.9 {
		t.Errorf("a prompt size never seen: %v, want what the model's answers show", p)
	}
}

// TestTiersOfOneModelAreToldApart: and one that nobody has seen leans on the rest.
func TestTiersOfOneModelAreToldApart(t *testing.T) {
	a := NewAnswers()
	for range 300 {
		a.Learn("chat", "gold", 0, 100, 800)
		a.Learn("chat", "batch", 0, 100, 20)
	}
	if p := a.Class("chat", "gold", 0, 100).Still(0, 200, 0); p < 0.95 {
		t.Errorf("gold goes beyond 200 tokens with probability %v, want about 1", p)
	}
	if p := a.Class("chat", "batch", 0, 100).Still(0, 200, 0); p > 0.05 {
		t.Errorf("batch goes beyond 200 tokens with probability %v, want about 0", p)
	}
	if p := a.Class("chat", "new", 0, 100).Still(0, 200, 0); p < 0.4 || p > 0.6 {
		t.Errorf("a tier never seen: %v, want half, as of all", p)
	}
}

// TestWhoMerelyAsksMakesNoClass: anybody can name models.
func TestWhoMerelyAsksMakesNoClass(t *testing.T) {
	a := NewAnswers()
	for i := range 1000 {
		a.Class(fmt.Sprint("m", i), "gold", i, i)
		a.Learn(fmt.Sprint("m", i), "", i, i, 0)
	}
	if len(a.classes) != 0 {
		t.Errorf("%d classes without an answer", len(a.classes))
	}
}

func TestClassesAreBounded(t *testing.T) {
	a := NewAnswers()
	for i := range 1000 {
		a.Learn(fmt.Sprint("m", i), "", i, i*10, 100)
	}
	if len(a.classes) != maxAnswerClasses {
		t.Errorf("%d classes, want %d", len(a.classes), maxAnswerClasses)
	}
	if p := a.Class("m999", "", 0, 10).Still(0, 50, 0); p < 0.8 {
		t.Errorf("a model without a class: %v, want what all answers show", p)
	}
}

func TestStillEqualsCountingAnswers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := &Lengths{dirty: true}
		lengths := rapid.SliceOfN(rapid.IntRange(1, fineTokens-1), 1, 50).Draw(t, "lengths")
		for _, n := range lengths {
			l.weight[n]++
		}
		done := rapid.IntRange(0, fineTokens-2).Draw(t, "done")
		more := rapid.IntRange(0, fineTokens-1-done).Draw(t, "more")
		alive, beyond := 0.0, 0.0
		for _, n := range lengths {
			if n >= done {
				alive++
			}
			if n >= done+more {
				beyond++
			}
		}
		want := 1.0
		if alive > 0 {
			want = beyond / alive
		}
		if got := l.Still(done, more, 0); math.Abs(got-want) > 1e-6 {
			t.Fatalf("Still(%d, %d) = %v, counted %v of %v", done, more, got, beyond, alive)
		}
	})
}
