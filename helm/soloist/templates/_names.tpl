{{/* Names and labels. */}}

{{- define "soloist.name" -}}
{{ .Values.nameOverride | default .Chart.Name }}
{{- end }}

{{- define "soloist.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride }}
{{- else if contains (include "soloist.name" .) .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name (include "soloist.name" .) | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{/* What selects the pods of one component: nothing that changes from version to version, since selectors cannot. */}}
{{- define "soloist.selector" -}}
app.kubernetes.io/name: {{ include "soloist.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component | quote }}
{{- end }}

{{- define "soloist.labels" -}}
{{ include "soloist.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: soloist
app.kubernetes.io/managed-by: {{ .root.Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | quote }}
{{- end }}

{{- define "soloist.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "soloist.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end }}

{{- define "soloist.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s-%s" .Chart.AppVersion .Values.variant) }}
{{- end -}}
{{- end }}

{{/* Under this name clients in the cluster find the server, and its certificate must have it. */}}
{{- define "soloist.host" -}}
{{ include "soloist.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "soloist.priorityClassName" -}}
{{- if .Values.priority.create -}}
{{ .Values.priority.className | default (printf "%s-%s" .Release.Namespace (include "soloist.fullname" .)) }}
{{- else -}}
{{ .Values.priority.className }}
{{- end -}}
{{- end }}
