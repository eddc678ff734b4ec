package kvbudget

import "fmt"

// layerKind is what a layer keeps of a request.
type layerKind uint8

const (
	keepsAll    layerKind = iota // every token
	keepsWindow                  // the last tokens
	keepsMamba                   // a constant: state space
	keepsLinear                  // a constant: linear attention
)

// count is the layers of each kind.
func count(kinds []layerKind) (n [4]int) {
	for _, k := range kinds {
		n[k]++
	}
	return n
}

// stageOf is the layers of a pipeline stage, [from, to): evenly, and what is left
// over one each for the stages before the last, from the back (vLLM,
// distributed/utils.py, get_pp_indices).
func stageOf(layers, pp, stage int) (from, to int) {
	at := 0
	for s := 0; ; s++ {
		n := layers / pp
		if left := layers % pp; s < pp-1 && s >= pp-1-left {
			n++
		}
		if s == stage {
			return at, at + n
		}
		at += n
	}
}

// ParseStages reads the layout of every pipeline stage from a config.json: each
// holds the same tokens, in its own layers. A device runs out where its own stage
// does, which is not the same for all where layers are of several kinds.
func ParseStages(name string, text []byte, d Deployment) ([]Layout, error) {
	c, l, element, err := readConfig(name, text, d)
	if err != nil {
		return nil, err
	}
	kinds, err := c.kinds(d)
	if err != nil {
		return nil, err
	}
	pp := max(d.PP, 1)
	if pp > len(kinds) {
		return nil, c.bad("pp", pp, fmt.Sprintf("at most num_hidden_layers, %d", len(kinds)))
	}
	stages := make([]Layout, pp)
	for s := range stages {
		from, to := stageOf(len(kinds), pp, s)
		if stages[s], err = c.layout(l, d, element, kinds[from:to], 1); err != nil {
			return nil, err
		}
		stages[s].Source = fmt.Sprintf("%s, layers %d to %d", l.Source, from, to-1)
	}
	return stages, nil
}

// Fullest is the stage that holds most of a request of that many tokens; the
// first of equals.
func Fullest(stages []Layout, tokens int) int {
	most := 0
	for s := range stages {
		if stages[s].Request(tokens) > stages[most].Request(tokens) {
			most = s
		}
	}
	return most
}
