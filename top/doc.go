// Package top shows a sidecar on a terminal: who has how much of each device and of
// what kind, what could be taken back how soon, the shrinks and the objectives. It is
// a client of the admin API: it reads GET /api/v1/state and /api/v1/handovers and
// knows nothing else of the sidecar.
//
// Fetch reads a Screen, Screen.Print writes it as plain text, Watch does both again
// and again on a terminal until its context ends.
package top
