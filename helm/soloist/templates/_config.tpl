{{/* The server's settings file, and where its Secrets are. */}}

{{- define "soloist.keysSecret" -}}
{{- $s := .Values.security -}}
{{- if $s.insecure -}}
{{- else if $s.apiKeys.existingSecret -}}
{{ $s.apiKeys.existingSecret }}
{{- else if $s.apiKeys.generate -}}
{{ include "soloist.fullname" . }}-keys
{{- end -}}
{{- end }}

{{- define "soloist.keysFile" -}}
{{ ternary .Values.security.apiKeys.fileKey "keys.yaml" (ne .Values.security.apiKeys.existingSecret "") }}
{{- end }}

{{/* Where the key of `helm test` and the gateway lies; empty where they have none. */}}
{{- define "soloist.clientKey" -}}
{{- if include "soloist.keysSecret" . -}}
{{ ternary .Values.security.apiKeys.clientKey "key" (ne .Values.security.apiKeys.existingSecret "") }}
{{- end -}}
{{- end }}

{{- define "soloist.modelSetting" -}}
{{- $model := .Values.model -}}
{{- if eq $model.source "s3" -}}
{{ $model.s3.uri }}
{{- else if eq $model.source "hub" -}}
{{ $model.hub.id }}
{{- else if eq $model.source "embedded" -}}
embedded
{{- else -}}
/models{{ with $model.path }}/{{ . }}{{ end }}
{{- end -}}
{{- end }}

{{- define "soloist.settingsFile" -}}
{{- $model := .Values.model -}}
{{- $host := .Values.service.listenHost -}}
{{- $tls := .Values.security.tls -}}
# The ports, files and model of this pod.
listen: {{ printf "%s:50051" $host | quote }}
metrics_listen: {{ printf "%s:9400" $host | quote }}
probe_listen: {{ printf "%s:9401" $host | quote }}
device: {{ .Values.variant }}
model: {{ include "soloist.modelSetting" . | quote }}
sha256: {{ $model.sha256 | quote }}
{{- if and (eq $model.source "s3") $model.s3.endpoint }}
s3_endpoint: {{ $model.s3.endpoint | quote }}
{{- end }}
{{- if and (eq $model.source "s3") (ne $model.cache.type "none") }}
model_cache: /cache
{{- end }}
{{- if $tls.secretName }}
tls_cert: /etc/soloist/tls/tls.crt
tls_key: /etc/soloist/tls/tls.key
{{- end }}
{{- if $tls.clientCA.secretName }}
tls_client_ca: /etc/soloist/client-ca/ca.crt
{{- end }}
{{- if include "soloist.keysSecret" . }}
keys: /etc/soloist/keys/keys.yaml
{{- end }}
insecure: {{ .Values.security.insecure }}
# `settings` of the values.
{{- $settings := .Values.settings }}
{{- if ne .Values.autoscaling.mode "none" }}
{{- /* So that clients of before find the pods that are added. */}}
{{- $age := minf $settings.connection_age_s .Values.autoscaling.connectionAgeSeconds }}
{{- $settings = merge (dict "connection_age_s" $age) $settings }}
{{- end }}
{{- range $name, $value := $settings }}
{{ $name }}: {{ toJson $value }}
{{- end }}
{{- end }}

{{/* Whether whoever reaches the gateway may ask: it has a key for everybody, or the server wants none. */}}
{{- define "soloist.gatewayNeedsNoKey" -}}
{{- if or (and .Values.gateway.lendKey (include "soloist.clientKey" .)) (not (include "soloist.keysSecret" .)) -}}true{{- end -}}
{{- end }}

{{- define "soloist.gatewayFile" -}}
{{- $tls := .Values.security.tls -}}
# The ports, files and servers of this pod.
listen: {{ printf "%s:8080" .Values.service.listenHost | quote }}
target: {{ include "soloist.host" . }}:50051
{{- if .Values.gateway.tlsSecretName }}
https_cert: /etc/soloist/https/tls.crt
https_key: /etc/soloist/https/tls.key
{{- else }}
# The network policy, an ingress or a mesh stands before it.
insecure: true
{{- end }}
{{- if and $tls.secretName $tls.caKey }}
tls_ca: /etc/soloist/client/ca.crt
{{- else if $tls.secretName }}
tls: true
{{- end }}
{{- if $tls.clientSecretName }}
tls_cert: /etc/soloist/client/tls.crt
tls_key: /etc/soloist/client/tls.key
{{- end }}
{{- if and .Values.gateway.lendKey (include "soloist.clientKey" .) }}
api_key_file: /etc/soloist/client/key
{{- end }}
# `gateway.settings` of the values.
{{- $settings := .Values.gateway.settings }}
{{- if and (include "soloist.gatewayNeedsNoKey" .) (not $settings.hosts) }}
{{- /* Else a page elsewhere could have its own name point here, and read the answers that it needs no key for. */}}
{{- $name := printf "%s-gateway" (include "soloist.fullname" .) }}
{{- $inNamespace := printf "%s.%s" $name .Release.Namespace }}
{{- $hosts := list $name $inNamespace (printf "%s.svc" $inNamespace) (printf "%s.svc.cluster.local" $inNamespace) "localhost" "127.0.0.1" }}
{{- $settings = merge (dict "hosts" $hosts) $settings }}
{{- end }}
{{- range $name, $value := $settings }}
{{ $name }}: {{ toJson $value }}
{{- end }}
{{- end }}
