package config

import (
	"time"

	"github.com/lull-project/lull/handover"
	"github.com/lull-project/lull/proxy"
	"github.com/lull-project/lull/size"
	"github.com/lull-project/lull/slo"
)

// Default is a File with every default that does not depend on the machine: no
// devices and no engines.
func Default() File {
	core := handover.DefaultConfig()
	return File{
		Listen:   "127.0.0.1:8080",
		StateDir: "/run/lull",
		Admin:    Admin{Listen: "127.0.0.1:9797"},
		Trainers: Trainers{Socket: "/run/lull/lull.sock", Heartbeat: time.Second, Lease: 10 * time.Second, OnStop: OnStopKeep},
		Policy: Policy{
			Mode: core.Mode, Quantum: core.Quantum, Reserve: core.Reserve, Quantile: core.Quantile, Horizon: core.Horizon,
			Prices: Prices{OffFor: 2 * time.Second}, ShrinkLimit: ShrinkLimit(core.Limit),
		},
		Admission:    Admission{Hold: core.Hold, Owed: core.Owed, Within: core.AckWithin, QueueLimit: core.QueueLimit},
		Proxy:        Proxy{IdleTimeout: 5 * time.Minute, BodyMemory: size.GiB, Usage: "pass", Balance: proxy.BalanceFirst, DrainTimeout: 30 * time.Second},
		Interference: Interference{Yield: Never, Pace: Never, ProgressFloor: slo.DefaultPacer().Floor},
		Telemetry:    Telemetry{LogLevel: "info"},
		SLO:          defaultSLO(),
	}
}

// ForUpstream is the file that `lull serve --upstream URL` stands for: one
// engine of whatever kind answers, on this host, with nothing lent until a
// device's capacity is given.
func ForUpstream(url string) File {
	f := Default()
	f.Engines = []Engine{{Name: "main", Kind: "auto", URL: url}}
	return f
}
