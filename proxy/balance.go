package proxy

import "fmt"

// The words of Config.Balance.
const (
	// BalanceFirst takes the first upstream that is not down.
	BalanceFirst = "first"
	// BalanceLeastLoad takes, of those that are not down, the one with the fewest open
	// requests of this process, held ones and those that pass unread included; of
	// several such the first. Answers of 5xx in a row count as open requests.
	BalanceLeastLoad = "least_load"
)

// ValidBalance names what is wrong with a Config's Balance.
func ValidBalance(balance string, failover bool) error {
	switch {
	case balance != "" && balance != BalanceFirst && balance != BalanceLeastLoad:
		return fmt.Errorf("proxy.balance: got %q, want %s or %s", balance, BalanceFirst, BalanceLeastLoad)
	case balance == BalanceLeastLoad && !failover:
		return fmt.Errorf("proxy.balance: got %s without proxy.failover, want failover: true, which says that all engines serve the same models", balance)
	}
	return nil
}

// pick chooses the upstream of a request, as an index, among those that are not down.
// When all are, the first: its error is the answer.
func (p *Proxy) pick() int { return max(0, p.pickBut(nil)) }

// pickBut is pick without one upstream, whose health that is; -1 where there is no
// choice or no other is up.
func (p *Proxy) pickBut(not *health) int {
	if !p.cfg.Failover {
		return -1
	}
	best, least := -1, int64(-1)
	for i := range p.upstreams {
		h := p.upstreams[i].health
		if h == not || h.down.Load() {
			continue
		}
		if p.cfg.Balance != BalanceLeastLoad {
			return i
		}
		if open := h.open.Load() + h.ill.Load(); least < 0 || open < least {
			best, least = i, open
		}
	}
	return best
}

// take counts a request in at its upstream, until give.
func (u upstream) take() { u.health.open.Add(1) }

func (u upstream) give() { u.health.open.Add(-1) }
