package engine

import (
	"context"
	"net/http"
	"sync"
)

// modelList is the part of GET /v1/models that is read.
type modelList struct {
	Data []servedModel `json:"data"`
}

type servedModel struct {
	ID          string `json:"id"`
	OwnedBy     string `json:"owned_by"`
	MaxModelLen int    `json:"max_model_len"`
}

func (m *modelList) add(id string, maxLen int) {
	m.Data = append(m.Data, servedModel{ID: id, MaxModelLen: maxLen})
}

// maxLen is the longest prompt + answer of any model, 0 if no model says it.
func (m modelList) maxLen() int {
	longest := 0
	for _, d := range m.Data {
		longest = max(longest, d.MaxModelLen)
	}
	return longest
}

// models reads /v1/models. A server that wants a key for it is alive and tells
// nothing more.
func (c *client) models(ctx context.Context) (modelList, error) {
	var m modelList
	err := c.getJSON(ctx, "/v1/models", &m)
	if s := statusOf(err); s == http.StatusUnauthorized || s == http.StatusForbidden {
		return modelList{}, nil
	}
	return m, err
}

// modelLength asks a server once for the longest prompt + answer; one that does
// not say is not asked again until it was gone.
type modelLength struct {
	mu    sync.Mutex
	asked bool
	most  int
}

func (m *modelLength) of(ctx context.Context, c *client) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.asked {
		list, err := c.models(ctx)
		m.asked = err == nil || statusOf(err) != 0
		m.most = list.maxLen()
	}
	return m.most
}

func (m *modelLength) forget() {
	m.mu.Lock()
	m.asked = false
	m.mu.Unlock()
}
