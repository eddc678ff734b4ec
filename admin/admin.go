package admin

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// Source is what the sidecar shows. Its values are encoded as JSON.
type Source interface {
	// State is the ledger, the queue, engines and trainers as of now.
	State() any
	// Handovers are the last ones, newest first.
	Handovers() any
	// Ready says whether a request that comes now can be served, and in sentences
	// what is wrong, which need not stand in its way.
	Ready() (ready bool, problems []string)
}

// New returns the API. metrics serves /metrics.
func New(source Source, metrics http.Handler) http.Handler {
	r := gin.New()
	r.Use(gin.Recovery())
	r.GET("/healthz", func(c *gin.Context) { c.String(http.StatusOK, "ok\n") })
	r.GET("/readyz", func(c *gin.Context) {
		ready, problems := source.Ready()
		status := http.StatusOK
		if !ready {
			status = http.StatusServiceUnavailable
		}
		c.JSON(status, gin.H{"ready": ready, "problems": problems})
	})
	r.GET("/metrics", gin.WrapH(metrics))
	v1 := r.Group("/api/v1")
	v1.GET("/state", func(c *gin.Context) { c.JSON(http.StatusOK, source.State()) })
	v1.GET("/handovers", func(c *gin.Context) { c.JSON(http.StatusOK, source.Handovers()) })
	r.NoRoute(func(c *gin.Context) {
		c.JSON(http.StatusNotFound, gin.H{"error": "no such path: " + c.Request.URL.Path +
			"; this is the admin listener, it has /healthz, /readyz, /metrics, /api/v1/state and /api/v1/handovers"})
	})
	return r
}

// Quiet switches gin's start-up printing off for the process; call it once,
// from main.
func Quiet() { gin.SetMode(gin.ReleaseMode) }
