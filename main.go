// Command lull trains in the lulls of an LLM server. See README.md, and
// docs/ARCHITECTURE.md for how it is built.
package main

import (
	"os"

	"github.com/lull-project/lull/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
