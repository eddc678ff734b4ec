package kvbudget

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestPromptTokensMoveFromThePriorToWhatUsageShows(t *testing.T) {
	p := NewPrompts()
	if got := p.Tokens("m", Content{Bytes: 400}); got != 100 {
		t.Fatalf("before usage: 400 bytes are %d tokens, want 100", got)
	}
	p.Learn("m", Content{}, 10)
	p.Learn("m", Content{Bytes: 10}, 0)
	if got := p.BytesPerToken("m"); got != 4 {
		t.Fatalf("usage without a prompt moved the bytes of a token to %v", got)
	}
	for range 400 {
		p.Learn("m", Content{Bytes: 1300}, 200)
	}
	if got := p.BytesPerToken("m"); math.Abs(got-6.5) > 0.05 {
		t.Fatalf("after 400 prompts of 6.5 bytes a token: %v", got)
	}
	for range 400 {
		p.Learn("m", Content{Bytes: 600}, 200)
	}
	if got := p.BytesPerToken("m"); math.Abs(got-3) > 0.2 {
		t.Fatalf("the bytes of a token do not forget: %v, want about 3", got)
	}
}

// TestModelsHavePromptsOfTheirOwn: one that has said nothing yet is taken for the
// others, and its first prompts count.
func TestModelsHavePromptsOfTheirOwn(t *testing.T) {
	p := NewPrompts()
	for range 200 {
		p.Learn("terse", Content{Bytes: 1200}, 200)
		p.Learn("wordy", Content{Bytes: 1200}, 600)
	}
	terse, wordy := p.Tokens("terse", Content{Bytes: 6000}), p.Tokens("wordy", Content{Bytes: 6000})
	if terse < 980 || terse > 1020 || wordy < 2940 || wordy > 3060 {
		t.Errorf("6000 bytes are %d and %d tokens, want 1000 and 3000", terse, wordy)
	}
	if new := p.Tokens("new", Content{Bytes: 6000}); new <= terse || new >= wordy {
		t.Errorf("of a new model they are %d, want between %d and %d", new, terse, wordy)
	}
	p.Learn("new", Content{Bytes: 6000}, 500)
	p.Learn("new", Content{Bytes: 6000}, 500)
	if new := p.Tokens("new", Content{Bytes: 6000}); new > 800 {
		t.Errorf("after two prompts of 500 tokens %d, want near 500", new)
	}
	for i := range 3 * mostPromptModels {
		p.Learn(fmt.Sprint(i), Content{Bytes: 100}, 25)
	}
	if len(p.models) != mostPromptModels {
		t.Errorf("%d models are learned, want %d at most", len(p.models), mostPromptModels)
	}
}

// TestEachKindOfContentIsLearnedByItself: though prompts have several at once.
func TestEachKindOfContentIsLearnedByItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.Float64Range(2, 8).Draw(t, "bytes a token")
		tool := rapid.Float64Range(2, 8).Draw(t, "bytes of tools a token")
		image := rapid.IntRange(64, 4000).Draw(t, "tokens of an image")
		rng := lcg(rapid.Uint64().Draw(t, "seed"))
		truth := func(c Content) int {
			return int(float64(c.Bytes-c.ToolBytes)/bytes+float64(c.ToolBytes)/tool) + image*c.Media.Images
		}
		p := NewPrompts()
		for range 400 {
			c := Content{Bytes: 200 + int(4000*rng.float())}
			if rng.float() < 0.5 {
				c.ToolBytes = int(3000 * rng.float())
				c.Bytes += c.ToolBytes
			}
			if rng.float() < 0.3 {
				c.Media.Images = 1 + int(3*rng.float())
			}
			p.Learn("m", c, truth(c))
		}
		for range 1000 { // images stay known though none come
			c := Content{Bytes: 200 + int(4000*rng.float())}
			p.Learn("m", c, truth(c))
		}
		for name, c := range map[string]Content{
			"text": {Bytes: 8000}, "tools": {Bytes: 8000, ToolBytes: 8000}, "images": {Media: Media{Images: 4}},
		} {
			if got, want := p.Tokens("m", c), truth(c); math.Abs(float64(got-want)) > 0.05*float64(want)+2 {
				t.Fatalf("%s: %d tokens, want about %d", name, got, want)
			}
		}
	})
}

func TestNoUsageMakesNonsenseOfPrompts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewPrompts()
		n := rapid.SampledFrom([]int{-1, 0, 1, 500, 1 << 20, math.MaxInt32, math.MaxInt64})
		for range rapid.IntRange(1, 30).Draw(t, "n") {
			draw := func() Content {
				return Content{Bytes: n.Draw(t, "bytes"), ToolBytes: n.Draw(t, "tools"), Media: Media{Images: n.Draw(t, "images"), Videos: n.Draw(t, "videos")}}
			}
			p.Learn("m", draw(), n.Draw(t, "tokens"))
			c := draw()
			if got := p.Tokens("m", c); got < 1 || got > math.MaxInt32 {
				t.Fatalf("%+v is %d tokens", c, got)
			}
			if b := p.BytesPerToken("m"); !(b >= 4*leastFactor && b <= 4*mostFactor) {
				t.Fatalf("%v bytes a token", b)
			}
		}
	})
}

func BenchmarkPromptsLearn(b *testing.B) {
	p := NewPrompts()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		p.Learn("m", Content{Bytes: 4000 + i%500, ToolBytes: 900, Media: Media{Images: i % 2}}, 1500+i%100)
	}
}
