package proxy

import (
	"errors"
	"fmt"
	"net/http"
)

// refuseStatus says why a status cannot be an answer's. net/http reads any three
// digits, and panics when it is asked to write some of them.
func refuseStatus(status int) error {
	switch {
	case status == http.StatusSwitchingProtocols:
		return errors.New("it switched protocols without being asked to")
	case status < 200:
		return fmt.Errorf("it answered with status %03d, want 200 to 999 (RFC 9110, 15)", status)
	}
	return nil
}
