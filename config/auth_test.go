package config

import (
	"strings"
	"testing"
)

func TestAuthKeysAreRead(t *testing.T) {
	f, err := Parse([]byte(minimal + "auth:\n  keys:\n    - {name: alice, hash: '" + hashA + "', tier: gold}\n    - {name: bob, hash: '" + hashB + "'}\nslo: {tiers: [{name: gold}]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if k := f.Auth.Keys; len(k) != 2 || k[0].Tier != "gold" || k[1].Name != "bob" || HashText(k[0].Sum()) != hashA || HashText(k[1].Sum()) != hashB {
		t.Errorf("got %+v", f.Auth)
	}
}

func TestBadAuthNamesKeyValueAndRule(t *testing.T) {
	entry := func(text string) string { return minimal + "auth: {keys: [" + text + "]}" }
	for text, want := range map[string]string{
		entry("{hash: '" + hashA + "'}"):                                            `auth.keys[0].name: got "", want letters, digits, -, _ and . only: whose key it is`,
		entry("{name: a, hash: sk-plain-key}"):                                      "auth.keys[0].hash: got no SHA-256, want sha256: and 64 lower-case hex digits (see `lull key`)",
		entry("{name: a, hash: '" + strings.ToUpper(hashA) + "'}"):                  "auth.keys[0].hash: got no SHA-256, want sha256: and 64 lower-case hex digits (see `lull key`)",
		entry("{name: a, hash: '" + hashA + "'}, {name: a, hash: '" + hashB + "'}"): `auth.keys[1].name: got "a" again, want each name once`,
		entry("{name: a, hash: '" + hashA + "'}, {name: b, hash: '" + hashA + "'}"): "auth.keys[1].hash: got " + hashA + " again, want each key once",
		entry("{name: a, hash: '" + hashA + "', tier: gold}"):                       `auth.keys[0].tier: got "gold", want the name of a tier in slo.tiers`,
		entry("{name: a, key: x}"):                                                  "auth.keys[0].key: no such key; see `lull config --print-default`",
		minimal + "slo: {tiers: [{name: gold}]}":                                    "slo.tiers[0]: got neither header nor keys, want at least one: nobody would be in it",
		minimal + "trainers: {on_stop: leave}":                                      `trainers.on_stop: got "leave", want drain or keep`,
		minimal + "proxy: {drain_timeout: 30}":                                      "proxy.drain_timeout: got 30, want a duration such as 12ms or 10s",
		minimal + "proxy: {trust_forwarded: 'yes'}":                                 `proxy.trust_forwarded: got "yes", want true or false`,
		minimal + "proxy: {upstream_key_file: /k, upstream_key_env: VLLM_API_KEY}":  `proxy.upstream_key_env: got "VLLM_API_KEY" beside upstream_key_file, want one of them`,
		minimal + "proxy: {upstream_key_env: sk-1234}":                              "proxy.upstream_key_env: got what is no name of a variable, want one such as VLLM_API_KEY; the key itself stands in no file",
	} {
		if _, err := Parse([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%s:\ngot  %v\nwant %s", strings.TrimPrefix(text, minimal), err, want)
		}
	}
}

func TestKeyPastedForItsHashIsNotRepeated(t *testing.T) {
	_, err := Parse([]byte(minimal + "auth: {keys: [{name: a, hash: sk-plain-key}]}"))
	if err == nil || strings.Contains(err.Error(), "sk-plain-key") {
		t.Errorf("got %v, want an error without the key", err)
	}
}
