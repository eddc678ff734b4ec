package calibrate

import "testing"

func TestBadFlagsAreNamedWithValueAndRule(t *testing.T) {
	good := DefaultConfig()
	good.Upstream, good.Model = "http://a:1", "m"
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		`--upstream: got "a:1", want http://host:port, https://host:port or unix:///path/of/the/socket`: func(c *Config) { c.Upstream = "a:1" },
		"--model: got none, want the name of a model that the server has (GET http://a:1/v1/models)":    func(c *Config) { c.Model = "" },
		"--runs: got 2, want 3 to 1000: a spread needs a few":                                           func(c *Config) { c.Runs = 2 },
		"--warm-up: got 0, want 1 to 1000: the first request of a server pays for what later ones find": func(c *Config) { c.WarmUp = 0 },
		"--factor: got 0.5, want 1 to 1000: an idle server must meet its objectives":                    func(c *Config) { c.Factor = 0.5 },
		"--max-spread: got 0, want more than 0 and at most 10, such as 0.25":                            func(c *Config) { c.MaxSpread = 0 },
		"--limit: got 0s, want more than 0":                                                             func(c *Config) { c.Limit = 0 },
		"--prompts: got [32], want at least 2, each once":                                               func(c *Config) { c.Prompts = []int{32} },
		"--prompts: got [32 32], want at least 2, each once":                                            func(c *Config) { c.Prompts = []int{32, 32} },
		"--prompts: got 0, want 1 to 1048576":                                                           func(c *Config) { c.Prompts = []int{0, 5} },
		"--answers: got 1, want 2 to 1048576":                                                           func(c *Config) { c.Answers = []int{1} },
		"--answers: got [], want at least 1, each once":                                                 func(c *Config) { c.Answers = nil },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}
