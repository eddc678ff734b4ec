package model

// pages hands out blocks and keeps which page each lies in. A block is known by
// its page alone: which part of the page it takes does not matter to anybody.
type pages struct {
	perPage int
	used    []int32 // blocks in use, by page
	place   []int32 // index in partial, by page; -1 when not there
	partial []int32 // mapped pages with a block to spare
	empty   []int32 // pages that are not mapped; the last is taken first
	mapped  int
	bound   int
	blocks  int
}

func newPages(n, perPage, bound int) *pages {
	p := &pages{
		perPage: perPage, bound: bound,
		used: make([]int32, n), place: make([]int32, n),
		partial: make([]int32, 0, n), empty: make([]int32, n),
	}
	for i := range p.empty {
		p.place[i] = -1
		p.empty[i] = int32(n - 1 - i) // page 0 is taken first
	}
	return p
}

// room is how many blocks can be taken now.
func (p *pages) room() int {
	return p.mapped*p.perPage - p.blocks + max(0, p.bound-p.mapped)*p.perPage
}

// take returns the page of a new block and whether that page must be mapped.
// The caller has checked room.
func (p *pages) take() (page int32, mapIt bool) {
	if n := len(p.partial); n > 0 {
		page = p.partial[n-1]
	} else {
		page = p.empty[len(p.empty)-1]
		p.empty = p.empty[:len(p.empty)-1]
		p.mapped++
		mapIt = true
		if p.perPage > 1 {
			p.addPartial(page)
		}
	}
	p.used[page]++
	p.blocks++
	if int(p.used[page]) == p.perPage {
		p.dropPartial(page)
	}
	return page, mapIt
}

// give takes a block of the page back and says whether the page must be unmapped.
func (p *pages) give(page int32) (unmapIt bool) {
	p.used[page]--
	p.blocks--
	if p.used[page] == 0 {
		p.dropPartial(page)
		p.empty = append(p.empty, page)
		p.mapped--
		return true
	}
	if p.place[page] < 0 {
		p.addPartial(page)
	}
	return false
}

func (p *pages) addPartial(page int32) {
	p.place[page] = int32(len(p.partial))
	p.partial = append(p.partial, page)
}

func (p *pages) dropPartial(page int32) {
	i := p.place[page]
	if i < 0 {
		return
	}
	last := len(p.partial) - 1
	moved := p.partial[last]
	p.partial[i] = moved
	p.place[moved] = i
	p.partial = p.partial[:last]
	p.place[page] = -1
}
