package engine

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"mime"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// families are the metrics of one reading, by name.
type families map[string]*dto.MetricFamily

// metrics reads /metrics and parses those families whose name begins with one of
// wanted: a server publishes thousands of histogram lines that nobody here reads.
func (c *client) metrics(ctx context.Context, wanted ...string) (families, error) {
	a, err := c.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	f, err := parseMetrics(a.body, wanted...)
	if err == nil {
		err = textOnly(a.header.Get("Content-Type"))
	}
	if err != nil {
		return nil, fmt.Errorf("engine %s: %s/metrics: %w", c.name, c.base, err)
	}
	return f, nil
}

// textOnly refuses a page that calls itself something else: what parses by chance
// is not a server's own metrics.
func textOnly(contentType string) error {
	kind, _, err := mime.ParseMediaType(contentType)
	if contentType == "" || err == nil && slices.Contains([]string{"text/plain", "application/openmetrics-text"}, kind) {
		return nil
	}
	return fmt.Errorf("got the content type %q, want text/plain; is this the server's own address?", contentType)
}

// parseMetrics reads Prometheus's text format.
func parseMetrics(body []byte, wanted ...string) (families, error) {
	if t := bytes.TrimSpace(body); len(t) > 0 && (t[0] == '<' || t[0] == '{') {
		return nil, fmt.Errorf("got %s, want Prometheus's text format; is this the server's own address?", start(t))
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	f, err := parser.TextToMetricFamilies(bytes.NewReader(keepLines(body, wanted)))
	if err != nil {
		return nil, fmt.Errorf("got %s, want Prometheus's text format: %w", start(body), err)
	}
	return f, nil
}

// keepLines drops every line that is not about a wanted name.
func keepLines(body []byte, wanted []string) []byte {
	var kept bytes.Buffer
	for line := range bytes.Lines(body) {
		name := line
		for _, comment := range []string{"# HELP ", "# TYPE "} {
			name = bytes.TrimPrefix(name, []byte(comment))
		}
		for _, w := range wanted {
			if bytes.HasPrefix(name, []byte(w)) {
				kept.Write(bytes.TrimRight(line, "\r\n"))
				kept.WriteByte('\n')
				break
			}
		}
	}
	return kept.Bytes()
}

// value is one series' number, whatever its type.
func value(m *dto.Metric) float64 {
	switch {
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Counter != nil:
		return m.Counter.GetValue()
	}
	return m.Untyped.GetValue()
}

// sum adds the series of a name: one a data-parallel engine. ok is false when the
// server does not publish it.
func (f families) sum(name string) (total float64, series int, err error) {
	for _, m := range f[name].GetMetric() {
		v, err := count(name, m)
		if err != nil {
			return 0, 0, err
		}
		total += v
		series++
	}
	return total, series, nil
}

// count is one series' number; no server has fewer than none of anything.
func count(name string, m *dto.Metric) (float64, error) {
	v := value(m)
	if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return 0, fmt.Errorf("%s: got %v, want a number of 0 or more", name, v)
	}
	if v > 1<<53 {
		return 0, fmt.Errorf("%s: got %v, want a server's own number", name, v)
	}
	return v, nil
}

// first is sum of the first name that is published; the error names them all.
func (f families) first(names ...string) (total float64, series int, err error) {
	for _, n := range names {
		if total, series, err = f.sum(n); err != nil || series > 0 {
			return total, series, err
		}
	}
	return 0, 0, fmt.Errorf("got no %s; the server may have renamed or switched off its metrics", strings.Join(names, " or "))
}

// series is one series of a name.
type series struct {
	labels map[string]string
	value  float64
}

// values are the series of a name that are numbers of 0 or more.
func (f families) values(name string) (all []series) {
	for _, m := range f[name].GetMetric() {
		if v, err := count(name, m); err == nil {
			all = append(all, series{labelsOf(m), v})
		}
	}
	return all
}

// labels are the labels of each series of a name.
func (f families) labels(name string) []map[string]string {
	var all []map[string]string
	for _, m := range f[name].GetMetric() {
		all = append(all, labelsOf(m))
	}
	return all
}

func labelsOf(m *dto.Metric) map[string]string {
	l := map[string]string{}
	for _, p := range m.GetLabel() {
		l[p.GetName()] = p.GetValue()
	}
	return l
}
