// Package arrival tells when the kernel had the bytes that a connection's reader
// got. Between that moment and the read lie the wake-up of a thread and the turn of
// a goroutine: time that a process takes and that no clock inside it sees.
//
// Linux stamps each packet of a socket that asks for it (SO_TIMESTAMPING, received
// packets, by software: Documentation/networking/timestamping.rst of the kernel) and
// hands the stamp of the last byte of a read to recvmsg. Unix sockets have no stamps,
// and neither has any other system: such connections stay as they are.
//
// Example:
//
//	l = arrival.Listen(l)         // connections that come
//	conn = arrival.Stamped(conn)  // one that was dialled
//	age := arrival.Of(conn).Age() // since the last read's last byte came
//
// Since it stands between net/http and its clients, it also lets net/http see that a
// client has left which had sent its next request already (Clock.Served).
//
// Stamps are of the wall clock, which may be set meanwhile. A read between which and
// the one before it the clock was set has none, and so has one whose stamp lies ahead.
//
// Concurrency: a connection may be used as any net.Conn; its Clock by anybody.
package arrival
