package emulator

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// apiError is an error as vLLM's API tells it.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

func badRequest(param, format string, args ...any) *apiError {
	e := &apiError{Message: fmt.Sprintf(format, args...), Type: "BadRequestError", Code: http.StatusBadRequest}
	if param != "" {
		e.Param = &param
	}
	return e
}

func unknownModel(name string) *apiError {
	param := "model"
	return &apiError{Message: fmt.Sprintf("The model `%s` does not exist.", name), Type: "NotFoundError", Param: &param, Code: http.StatusNotFound}
}

func engineError(message string) *apiError {
	return &apiError{Message: message, Type: "InternalServerError", Code: http.StatusInternalServerError}
}

// body is the error as JSON.
func (e *apiError) body() []byte {
	b, err := json.Marshal(map[string]*apiError{"error": e})
	if err != nil {
		return []byte(`{"error":{"message":"internal error","type":"InternalServerError","param":null,"code":500}}`)
	}
	return b
}

func (e *apiError) write(w http.ResponseWriter) {
	writeJSON(w, e.Code, e.body())
}

// writeJSON answers with a body that is JSON already. A client that has left is
// no concern of the caller.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
