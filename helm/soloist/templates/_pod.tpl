{{/* Parts of pods. All of them keep to the level `restricted` of Pod Security. */}}

{{- define "soloist.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ .Values.podSecurity.runAsUser | int64 }}
runAsGroup: {{ .Values.podSecurity.runAsGroup | int64 }}
fsGroup: {{ .Values.podSecurity.runAsGroup | int64 }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "soloist.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* The user has no home and the root is read-only: everything that is written goes below /tmp. */}}
{{- define "soloist.folders" -}}
- name: HOME
  value: /tmp
- name: XDG_CACHE_HOME
  value: /tmp/cache
- name: TRITON_CACHE_DIR
  value: /tmp/triton
- name: NUMBA_CACHE_DIR
  value: /tmp/numba
{{- end }}

{{- define "soloist.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{/* One volume with all that the server reads: settings, keys, certificates. Kubernetes replaces its files in place. */}}
{{- define "soloist.etcVolume" -}}
{{- $tls := .Values.security.tls -}}
- name: etc
  projected:
    defaultMode: 0440
    sources:
      - configMap:
          name: {{ include "soloist.fullname" . | quote }}
          items:
            - {key: soloist.yaml, path: soloist.yaml}
      {{- with include "soloist.keysSecret" . }}
      - secret:
          name: {{ . | quote }}
          items:
            - {key: {{ include "soloist.keysFile" $ | quote }}, path: keys/keys.yaml}
      {{- end }}
      {{- with $tls.secretName }}
      - secret:
          name: {{ . | quote }}
          items:
            - {key: tls.crt, path: tls/tls.crt}
            - {key: tls.key, path: tls/tls.key}
      {{- end }}
      {{- with $tls.clientCA }}
      {{- if .secretName }}
      - secret:
          name: {{ .secretName | quote }}
          items:
            - {key: {{ .key | quote }}, path: client-ca/ca.crt}
      {{- end }}
      {{- end }}
{{- end }}

{{- define "soloist.modelVolumes" -}}
{{- $model := .Values.model -}}
{{- if eq $model.source "pvc" }}
- name: models
  persistentVolumeClaim:
    claimName: {{ $model.pvc.claimName | quote }}
    readOnly: true
{{- else if eq $model.source "image" }}
- name: models
  image:
    reference: {{ $model.image.reference | quote }}
    pullPolicy: {{ $model.image.pullPolicy }}
{{- else if eq $model.source "hostPath" }}
- name: models
  hostPath:
    path: {{ $model.hostPath.path | quote }}
    type: Directory
{{- end }}
{{- if eq $model.cache.type "emptyDir" }}
- name: cache
  emptyDir:
    sizeLimit: {{ $model.cache.size }}
{{- else if eq $model.cache.type "pvc" }}
- name: cache
  persistentVolumeClaim:
    claimName: {{ $model.cache.claimName | quote }}
{{- end }}
{{- end }}

{{/* What a client in this chart needs to call the server, as sources of a projected volume: files below client/. */}}
{{- define "soloist.clientSources" -}}
{{- $tls := .root.Values.security.tls -}}
{{- $key := include "soloist.clientKey" .root -}}
{{- if and .withKey $key }}
- secret:
    name: {{ include "soloist.keysSecret" .root | quote }}
    items:
      - {key: {{ $key | quote }}, path: client/key}
{{- end }}
{{- if and $tls.secretName $tls.caKey }}
- secret:
    name: {{ $tls.secretName | quote }}
    items:
      - {key: {{ $tls.caKey | quote }}, path: client/ca.crt}
{{- end }}
{{- with $tls.clientSecretName }}
- secret:
    name: {{ . | quote }}
    items:
      - {key: tls.crt, path: client/tls.crt}
      - {key: tls.key, path: client/tls.key}
{{- end }}
{{- end }}

{{- define "soloist.clientArguments" -}}
{{- $tls := .Values.security.tls -}}
{{- if $tls.secretName }}
{{- if $tls.caKey }}
- --tls-ca=/etc/soloist/client/ca.crt
{{- else }}
- --tls
{{- end }}
{{- end }}
{{- if $tls.clientSecretName }}
- --tls-cert=/etc/soloist/client/tls.crt
- --tls-key=/etc/soloist/client/tls.key
{{- end }}
{{- if include "soloist.clientKey" . }}
- --api-key-file=/etc/soloist/client/key
{{- end }}
{{- end }}
