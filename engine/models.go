package engine

import (
	"context"
	"net/http"
)

// modelList is the part of GET /v1/models that is read.
type modelList struct {
	Data []struct {
		ID          string `json:"id"`
		MaxModelLen int    `json:"max_model_len"`
	} `json:"data"`
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
