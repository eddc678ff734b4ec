package config

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/lull-project/lull/proxy"
)

// Auth is who may send requests.
type Auth struct {
	// Keys are the API keys of Lull's own clients. With none, every request passes
	// with whatever credentials it carries.
	Keys []AuthKey `koanf:"keys"`
}

// AuthKey is one client's API key.
type AuthKey struct {
	// Name says whose it is; it is for people.
	Name string `koanf:"name"`
	// Hash is "sha256:" and the SHA-256 of the key in hex; the key itself is in no
	// file.
	Hash string `koanf:"hash"`
	// Tier is the tier of requests that carry the key; empty leaves it to the tier's
	// own keys and header.
	Tier string `koanf:"tier"`
}

// hashPrefix says which hash it is, so that there may be another one day.
const hashPrefix = "sha256:"

// Sum is the hash as the data path compares it. The file must be valid.
func (k AuthKey) Sum() (sum proxy.KeyHash) {
	_, _ = hex.Decode(sum[:], []byte(strings.TrimPrefix(k.Hash, hashPrefix))) // validate has read it
	return sum
}

// HashText is a hash as a file has it.
func HashText(sum proxy.KeyHash) string { return hashPrefix + hex.EncodeToString(sum[:]) }

func (a Auth) validate(tiers []Tier) error {
	known := map[string]bool{"": true}
	for _, t := range tiers {
		known[t.Name] = true
	}
	names, hashes := map[string]bool{}, map[string]bool{}
	for i, k := range a.Keys {
		key := fmt.Sprintf("auth.keys[%d]", i)
		switch {
		case !plainName.MatchString(k.Name):
			return fmt.Errorf("%s.name: got %q, want letters, digits, -, _ and . only: whose key it is", key, k.Name)
		case names[k.Name]:
			return fmt.Errorf("%s.name: got %q again, want each name once", key, k.Name)
		case !keyHash.MatchString(k.Hash):
			// A key that was pasted here by mistake must not reach a log.
			return fmt.Errorf("%s.hash: got no SHA-256, want sha256: and 64 lower-case hex digits (see `lull key`)", key)
		case hashes[k.Hash]:
			return fmt.Errorf("%s.hash: got %s again, want each key once", key, k.Hash)
		case !known[k.Tier]:
			return fmt.Errorf("%s.tier: got %q, want the name of a tier in slo.tiers", key, k.Tier)
		}
		names[k.Name], hashes[k.Hash] = true, true
	}
	return nil
}

// has says that some key puts its requests into a tier.
func (a Auth) has(tier string) bool {
	for _, k := range a.Keys {
		if k.Tier == tier {
			return true
		}
	}
	return false
}
