package trainer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lull-project/lull/size"
)

// hows are the ways in which an order is met, cheapest first.
var hows = []string{"cached", "drop", "suspend", "discard", "finish", "nothing", "part", "superseded"}

func readHello(f fields) Message {
	m := Hello{
		Version: f.int("version", true), Job: f.text("job", true),
		Rank: f.int("rank", true), World: f.int("world", true), PID: f.int("pid", true),
		Device: f.text("device", true), Ceiling: f.bytes("ceiling", true), Held: f.bytes("held", true),
		LastEpoch: uint64(f.int("last_epoch", true)), Baseline: f.bytes("baseline", false),
		Floor: f.bytes("floor", false), FloorKnown: f.flag("floor_known"),
		MinBudget: f.bytes("min_budget", false), Suspended: f.bytes("suspended", false),
		MemoryModel: readModel(f), Progress: readProgress(f), Token: f.text("token", false),
	}
	if *f.err == nil && m.Job == "" {
		f.fail("job", "empty, want the job's name")
	}
	if m.World < 1 || m.Rank >= m.World {
		f.fail("rank", fmt.Sprintf("got %d of %d, want 0 <= rank < world", m.Rank, m.World))
	}
	return m
}

func (m Hello) write(w *writer) {
	w.int("version", m.Version)
	w.text("job", m.Job)
	w.int("rank", m.Rank)
	w.int("world", m.World)
	w.int("pid", m.PID)
	w.text("device", m.Device)
	w.bytes("ceiling", m.Ceiling)
	w.bytes("held", m.Held)
	w.uint("last_epoch", m.LastEpoch)
	w.bytes("baseline", m.Baseline)
	w.bytes("floor", m.Floor)
	w.flag("floor_known", m.FloorKnown)
	w.bytes("min_budget", m.MinBudget)
	w.bytes("suspended", m.Suspended)
	writeModel(w, m.MemoryModel)
	if p := m.Progress; p != nil {
		w.key("progress")
		w.object(func() {
			w.int("samples", p.Samples)
			w.int("step", p.Step)
			w.optional("loss", p.Loss)
		})
	}
	w.text("token", m.Token)
}

func readModel(f fields) *MemoryModel {
	o, ok := f.object("memory_model", false)
	if !ok {
		return nil
	}
	return &MemoryModel{
		Base: o.float("base", true), Slope: o.float("slope", true),
		Floor: o.float("floor", true), Error: o.float("error", true),
	}
}

func writeModel(w *writer, m *MemoryModel) {
	if m == nil {
		return
	}
	w.key("memory_model")
	w.object(func() {
		w.float("base", m.Base)
		w.float("slope", m.Slope)
		w.float("floor", m.Floor)
		w.float("error", m.Error)
	})
}

func readProgress(f fields) *Progress {
	o, ok := f.object("progress", false)
	if !ok {
		return nil
	}
	return &Progress{Samples: o.int("samples", true), Step: o.int("step", true), Loss: o.optional("loss")}
}

func readAck(f fields) Message {
	m := Ack{
		Epoch: uint64(f.int("epoch", true)), Held: f.bytes("held", true),
		Waited: f.duration("waited_us", time.Microsecond, true),
		Freed:  f.duration("freed_us", time.Microsecond, true),
		How:    f.text("how", true), SamplesDiscarded: f.int("samples_discarded", false),
	}
	for i, raw := range f.list("spans") {
		if o, ok := f.open(index("spans", i), raw); ok {
			m.Spans = append(m.Spans, Span{
				Name:   o.text("name", true),
				Offset: o.duration("offset_us", time.Microsecond, true),
				Took:   o.duration("took_us", time.Microsecond, true),
			})
		}
	}
	if *f.err == nil && !slices.Contains(hows, m.How) {
		f.fail("how", "unknown, want one of "+strings.Join(hows, ", "))
	}
	return m
}

func (m Ack) write(w *writer) {
	w.uint("epoch", m.Epoch)
	w.bytes("held", m.Held)
	w.duration("waited_us", m.Waited, time.Microsecond)
	w.duration("freed_us", m.Freed, time.Microsecond)
	w.text("how", m.How)
	w.int("samples_discarded", m.SamplesDiscarded)
	w.items("spans", len(m.Spans), func(i int) {
		w.object(func() {
			w.text("name", m.Spans[i].Name)
			w.duration("offset_us", m.Spans[i].Offset, time.Microsecond)
			w.duration("took_us", m.Spans[i].Took, time.Microsecond)
		})
	})
}

func readRequest(f fields) Message { return Request{Floor: f.bytes("floor", true)} }

func (m Request) write(w *writer) { w.bytes("floor", m.Floor) }

func readReport(f fields) Message {
	m := Report{
		Bytes: f.sizes("bytes"), Samples: f.int("samples", true), Step: f.int("step", true),
		Microbatch: f.int("microbatch", true), MicrobatchTook: f.millis("microbatch_ms"),
		BatchTook: f.millis("batch_ms"), Loss: f.optional("loss"),
	}
	for i, raw := range f.list("rate_curve") {
		m.RateCurve = append(m.RateCurve, readRatePoint(f, index("rate_curve", i), raw))
	}
	for i, raw := range f.list("costs") {
		if o, ok := f.open(index("costs", i), raw); ok {
			m.Costs = append(m.Costs, Cost{
				How: o.text("how", true), FixedUS: o.float("fixed_us", true),
				USPerMiB: o.float("us_per_mib", true), LostSampleSecs: o.float("lost_sample_s", true),
			})
		}
	}
	m.Recomputed = f.int("recomputed", false)
	m.WorkLostSampleSeconds = f.float("work_lost_sample_s", false)
	m.MemoryModel = readModel(f)
	m.ModelError = f.optional("model_error")
	return m
}

func readRatePoint(f fields, key string, raw json.RawMessage) RatePoint {
	var pair []json.RawMessage
	if kind(raw) == "an array" {
		_ = json.Unmarshal(raw, &pair)
	}
	if len(pair) != 2 {
		f.fail(key, "got "+kind(raw)+", want an array of 2")
		return RatePoint{}
	}
	return RatePoint{
		Bytes:         size.Bytes(f.parseInt(index(key, 0), pair[0])),
		SamplesPerSec: f.parseFloat(index(key, 1), pair[1]),
	}
}

func (m Report) write(w *writer) {
	w.sizes("bytes", m.Bytes)
	w.int("samples", m.Samples)
	w.int("step", m.Step)
	w.int("microbatch", m.Microbatch)
	w.float("microbatch_ms", float64(m.MicrobatchTook)/float64(time.Millisecond))
	w.float("batch_ms", float64(m.BatchTook)/float64(time.Millisecond))
	w.optional("loss", m.Loss)
	w.items("rate_curve", len(m.RateCurve), func(i int) {
		w.b = append(w.b, '[')
		w.b = strconv.AppendInt(w.b, int64(max(0, m.RateCurve[i].Bytes)), 10)
		w.b = append(w.b, ',')
		w.number("rate_curve", m.RateCurve[i].SamplesPerSec)
		w.b = append(w.b, ']')
	})
	w.items("costs", len(m.Costs), func(i int) {
		w.object(func() {
			w.text("how", m.Costs[i].How)
			w.float("fixed_us", m.Costs[i].FixedUS)
			w.float("us_per_mib", m.Costs[i].USPerMiB)
			w.float("lost_sample_s", m.Costs[i].LostSampleSecs)
		})
	})
	w.int("recomputed", m.Recomputed)
	w.float("work_lost_sample_s", m.WorkLostSampleSeconds)
	writeModel(w, m.MemoryModel)
	w.optional("model_error", m.ModelError)
}

func readPong(f fields) Message { return Pong{Seq: f.int("seq", false)} }

func (m Pong) write(w *writer) { w.int("seq", m.Seq) }
