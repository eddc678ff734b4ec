package config

import _ "embed"

// Example is the commented lull.yaml that `lull config --print-default` prints.
// Its values are the defaults; a test holds it to them.
//
//go:embed lull.yaml
var Example string
