// Package memory holds real memory in pages of 2 MiB: mapped means zero-filled
// and counted in the process's RssAnon, unmapped means back with the kernel. It
// lies outside the Go heap.
//
// It knows no bound and no request: the emulator's model decides which page to
// map. It starts no goroutine and keeps no file open.
//
//	pool, err := memory.Reserve(640<<20)
//	err = pool.Map(3)   // RssAnon + 2 MiB
//	err = pool.Unmap(3) // RssAnon - 2 MiB
//	err = pool.Close()
//
// Different pages of a Pool may be mapped and unmapped by different goroutines at
// once, one page only by one; Mapped may be called at any time.
package memory
