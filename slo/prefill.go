package slo

import "time"

// prefillKeep is the weight of what was known when a request is added: about the
// last twenty count.
const prefillKeep = 0.95

// Prefill predicts the time from forwarding a request to its first token by the
// tokens of its prompt, from what requests took: least squares over decayed sums
// (Draper and Smith, Applied Regression Analysis, ch. 1). The zero value knows
// nothing and predicts 0. It is for one goroutine at a time.
type Prefill struct{ weight, x, y, xx, xy, yy float64 }

// Learn adds one request: its prompt's tokens, and its TTFT without held time.
func (p *Prefill) Learn(tokens int, took time.Duration) {
	x, y := float64(tokens), took.Seconds()
	for _, sum := range []struct {
		of  *float64
		add float64
	}{{&p.weight, 1}, {&p.x, x}, {&p.y, y}, {&p.xx, x * x}, {&p.xy, x * y}, {&p.yy, y * y}} {
		*sum.of = *sum.of*prefillKeep + sum.add
	}
}

// PerToken is what a further token of a prompt takes, by the part of the slope that
// the requests' lengths explain; 0 where nothing is known.
func (p *Prefill) PerToken() time.Duration {
	if p.weight == 0 {
		return 0
	}
	x, y := p.x/p.weight, p.y/p.weight
	varX, varY, cov := p.xx/p.weight-x*x, p.yy/p.weight-y*y, p.xy/p.weight-x*y
	if varX <= 1e-9*(1+x*x) || varY <= 0 || cov <= 0 {
		return 0
	}
	return time.Duration(min(1, cov*cov/(varX*varY)) * cov / varX * float64(time.Second))
}

// For is the prediction for a prompt of so many tokens. The slope counts by the
// share of the variance that it explains, so that queueing is not taken for a long
// prompt's cost, and no prompt is predicted more than its share of tokens beside
// the mean one: twice as long, at most twice the time.
func (p *Prefill) For(tokens int) time.Duration {
	if p.weight == 0 {
		return 0
	}
	x, y := p.x/p.weight, p.y/p.weight
	varX, varY, cov := p.xx/p.weight-x*x, p.yy/p.weight-y*y, p.xy/p.weight-x*y
	predicted := y
	if varX > 1e-9*(1+x*x) && varY > 0 && cov > 0 {
		explained := min(1, cov*cov/(varX*varY))
		predicted += explained * cov / varX * (float64(tokens) - x)
	}
	most := y
	if x > 0 {
		most *= max(1, float64(tokens)/x)
	}
	return time.Duration(min(max(predicted, 0), most) * float64(time.Second))
}
