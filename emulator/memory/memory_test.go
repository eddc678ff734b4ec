package memory

import (
	"strings"
	"testing"
)

// slack is what the Go runtime may move on its own while a test measures.
const slack = 1 << 20

func rss(t *testing.T) int64 {
	t.Helper()
	n, err := RSS()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func reserve(t *testing.T, pages int) *Pool {
	t.Helper()
	p, err := Reserve(int64(pages) * PageBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func expectNear(t *testing.T, what string, got, want int64) {
	t.Helper()
	if got < want-slack || got > want+slack {
		t.Fatalf("%s: got %d KiB, want %d KiB", what, got>>10, want>>10)
	}
}

func TestMappedPagesAreInRSSAndUnmappedOnesAreNot(t *testing.T) {
	before := rss(t)
	p := reserve(t, 32)
	expectNear(t, "rss after reserve", rss(t)-before, 0)
	for _, page := range []int{0, 1, 2, 3, 17, 18, 31} {
		if err := p.Map(page); err != nil {
			t.Fatal(err)
		}
	}
	expectNear(t, "rss of 7 pages", rss(t)-before, 7*PageBytes)
	if p.Mapped() != 7*PageBytes {
		t.Fatalf("mapped: got %d, want %d", p.Mapped(), 7*PageBytes)
	}
	for _, page := range []int{1, 17, 31} {
		if err := p.Unmap(page); err != nil {
			t.Fatal(err)
		}
	}
	expectNear(t, "rss of 4 pages", rss(t)-before, 4*PageBytes)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	expectNear(t, "rss after close", rss(t)-before, 0)
}

func TestPagesLieOnHugePageBoundaries(t *testing.T) {
	p := reserve(t, 3)
	for i := range p.Pages() {
		if a := address(p.page(i)); a%PageBytes != 0 {
			t.Fatalf("page %d at %#x, want a multiple of 2 MiB", i, a)
		}
	}
}

func TestMapAllMapsEveryPage(t *testing.T) {
	before := rss(t)
	p := reserve(t, 8)
	if err := p.MapAll(); err != nil {
		t.Fatal(err)
	}
	expectNear(t, "rss", rss(t)-before, 8*PageBytes)
}

func TestUnmappedPageComesBackAsZeros(t *testing.T) {
	p := reserve(t, 1)
	for range 2 {
		if err := p.Map(0); err != nil {
			t.Fatal(err)
		}
		if p.page(0)[5] != 0 {
			t.Fatal("page holds old bytes")
		}
		p.page(0)[5] = 7
		if err := p.Unmap(0); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTouchMakesMemoryRealWhereTheKernelCannotPopulate(t *testing.T) {
	before := rss(t)
	p := reserve(t, 4)
	touch(p.aligned)
	expectNear(t, "rss", rss(t)-before, 4*PageBytes)
}

func TestWrongBooksAreErrors(t *testing.T) {
	p := reserve(t, 2)
	if err := p.Map(0); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		err  error
		want string
	}{
		{p.Map(0), "memory: map page 0: mapped is true, want false"},
		{p.Unmap(1), "memory: unmap page 1: mapped is false, want true"},
		{p.Map(2), "memory: map page 2: the pool has pages 0 to 1"},
	} {
		if tc.err == nil || tc.err.Error() != tc.want {
			t.Errorf("got %v, want %q", tc.err, tc.want)
		}
	}
	if _, err := Reserve(PageBytes + 1); err == nil || !strings.Contains(err.Error(), "want a multiple of 2097152") {
		t.Errorf("odd size: got %v", err)
	}
	if _, err := Reserve(1 << 60); err == nil || !strings.Contains(err.Error(), "bytes of addresses: ") {
		t.Errorf("huge size: got %v", err)
	}
}

func TestStatusErrorsNameTheLine(t *testing.T) {
	got, err := parseStatus([]byte("Name:\tx\nRssAnon:\t     12 kB\nRssFile:\t 9 kB\nRssShmem:\t 3 kB\n"))
	if err != nil || got != 15<<10 {
		t.Fatalf("got %d, %v; want %d", got, err, 15<<10)
	}
	for text, want := range map[string]string{
		"RssAnon:\t12 kB\n":                   "memory: /proc/self/status: no line RssShmem:; Linux 4.5 or later has it",
		"RssAnon:\tmany kB\nRssShmem: 1 kB\n": `memory: /proc/self/status: RssAnon: got "many", want a number of kB`,
	} {
		if _, err := parseStatus([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func BenchmarkMapAndUnmap(b *testing.B) {
	p, err := Reserve(PageBytes)
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	b.SetBytes(PageBytes)
	for b.Loop() {
		if err := p.Map(0); err != nil {
			b.Fatal(err)
		}
		if err := p.Unmap(0); err != nil {
			b.Fatal(err)
		}
	}
}

func TestPinnedPoolStaysRealWhateverIsMapped(t *testing.T) {
	p, err := Reserve(8 * PageBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Pin(); err != nil {
		t.Fatal(err)
	}
	before, _ := RSS()
	for _, do := range []func(int) error{p.Map, p.Unmap, p.Map} {
		if err := do(3); err != nil {
			t.Fatal(err)
		}
	}
	after, _ := RSS()
	if p.Mapped() != 8*PageBytes || !p.Pinned() || before-after >= PageBytes {
		t.Errorf("mapped %d of %d, RSS fell by %d", p.Mapped(), 8*PageBytes, before-after)
	}
	if err := p.Map(3); err == nil {
		t.Error("a page was mapped twice without an error")
	}
}
