package faults

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Set is the faults of one answer, innermost last. The zero Set is none.
type Set []wrapper

type wrapper func(Sink) Sink

// Wrap puts the faults around the sink.
func (s Set) Wrap(sink Sink) Sink {
	for i := len(s) - 1; i >= 0; i-- {
		sink = s[i](sink)
	}
	return sink
}

// Names lists the known faults, each with the form of its value.
func Names() []string {
	var names []string
	for _, k := range known() {
		names = append(names, k.name+"="+k.form)
	}
	return names
}

type fault struct {
	name, form string
	parse      func(value string) (wrapper, error)
}

func known() []fault {
	return []fault{
		{"latency", "DURATION", fromDuration(latency)},
		{"stall-after", "TOKENS", fromCount(stallAfter, 0)},
		{"reset-after", "TOKENS", fromCount(resetAfter, 0)},
		{"error-after", "TOKENS", fromCount(errorAfter, 0)},
		{"split-writes", "BYTES", fromCount(splitWrites, 1)},
		{"slow-close", "DURATION", fromDuration(slowClose)},
		{"noop", "ANYTHING", func(string) (wrapper, error) { return noop, nil }},
	}
}

// Parse reads "name=value,name=value". An empty text is no fault.
func Parse(text string) (Set, error) {
	var set Set
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		w, err := parseOne(name, value)
		if err != nil {
			return nil, fmt.Errorf("fault %q: %w", part, err)
		}
		set = append(set, w)
	}
	return set, nil
}

func parseOne(name, value string) (wrapper, error) {
	for _, k := range known() {
		if k.name == name {
			return k.parse(value)
		}
	}
	return nil, fmt.Errorf("not known, want one of %s", strings.Join(Names(), ", "))
}

func fromDuration(make func(time.Duration) wrapper) func(string) (wrapper, error) {
	return func(value string) (wrapper, error) {
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 {
			return nil, fmt.Errorf("got %q, want a duration of 0 or more, such as 20ms", value)
		}
		return make(d), nil
	}
}

func fromCount(make func(int) wrapper, least int) func(string) (wrapper, error) {
	return func(value string) (wrapper, error) {
		n, err := strconv.Atoi(value)
		if err != nil || n < least {
			return nil, fmt.Errorf("got %q, want a whole number of at least %d", value, least)
		}
		return make(n), nil
	}
}
