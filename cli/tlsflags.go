package cli

import (
	"github.com/spf13/cobra"

	"github.com/lull-project/lull/endpoint"
)

// tlsFlags are the tls section of an engine in lull.yaml, on a command line.
func tlsFlags(c *cobra.Command, t *endpoint.TLS) {
	f := c.Flags()
	f.StringVar(&t.CA, "tls.ca", "", "`file` of the CAs to trust in place of the system's, for an https URL")
	f.StringVar(&t.Cert, "tls.cert", "", "`file` of the certificate to show to the server")
	f.StringVar(&t.Key, "tls.key", "", "`file` of that certificate's private key")
	f.StringVar(&t.ServerName, "tls.server_name", "", "`name` that the server's certificate must have; default the URL's host")
}
