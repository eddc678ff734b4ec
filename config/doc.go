// Package config reads lull.yaml: one commented file, one parser.
//
// File is the file as it is written; each section is turned into the Config of
// the package that uses it by the sidecar. A default stands in one place: the
// package that owns the value. The package opens the file and nothing else; a
// File is a plain value.
//
//	f, err := config.Load("lull.yaml") // err names file, key, value and rule
package config
