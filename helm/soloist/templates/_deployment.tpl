{{/* The Deployment of server pods. `.tier` is `main` or `floor`; `.replicas` is absent where something scales them. */}}

{{- define "soloist.deployment" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $of := dict "root" $root "component" "server" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: "{{ include "soloist.fullname" $root }}{{ if eq .tier "floor" }}-floor{{ end }}"
  labels:
    {{- include "soloist.labels" $of | nindent 4 }}
    soloist.dev/tier: {{ .tier }}
  {{- if hasKey . "replicas" }}
  annotations:
    # So that what scales the pods later on does not begin with one: see deployment.yaml.
    soloist.dev/replicas-by: chart
  {{- end }}
spec:
  {{- if hasKey . "replicas" }}
  replicas: {{ .replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  # A node may have to come first, and then the model.
  progressDeadlineSeconds: {{ add (int $values.probes.startup.budgetSeconds) 600 }}
  strategy:
    {{- if eq $values.rollout "recreate" }}
    type: Recreate
    {{- else }}
    type: RollingUpdate
    rollingUpdate:
      {{- if eq $values.rollout "surge" }}
      maxSurge: 1
      maxUnavailable: 0
      {{- else }}
      maxSurge: 0
      maxUnavailable: 1
      {{- end }}
    {{- end }}
  selector:
    matchLabels:
      {{- include "soloist.selector" $of | nindent 6 }}
      soloist.dev/tier: {{ .tier }}
  template:
    metadata:
      labels:
        {{- include "soloist.labels" $of | nindent 8 }}
        soloist.dev/tier: {{ .tier }}
        soloist.dev/revision: {{ include "soloist.revision" $root | quote }}
        {{- with $values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        checksum/settings: {{ include "soloist.settingsFile" $root | sha256sum | quote }}
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      {{- with include "soloist.pullSecrets" $root }}
      {{- . | trim | nindent 6 }}
      {{- end }}
      serviceAccountName: {{ include "soloist.serviceAccountName" $root | quote }}
      automountServiceAccountToken: {{ $values.kubernetes.enabled }}
      # Variables of a Service that is named like ours would be taken for settings.
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ include "soloist.gracePeriod" $root }}
      securityContext:
        {{- include "soloist.podSecurityContext" $root | nindent 8 }}
      {{- with include "soloist.placement" (dict "root" $root "tier" .tier) }}
      {{- . | trim | nindent 6 }}
      {{- end }}
      containers:
        - name: soloist
          {{- include "soloist.serverContainer" $root | nindent 10 }}
      volumes:
        {{- include "soloist.etcVolume" $root | nindent 8 }}
        - name: tmp
          emptyDir:
            sizeLimit: {{ $values.tmp.size }}
        - name: shm
          emptyDir:
            medium: Memory
            sizeLimit: {{ $values.shm.size }}
        {{- with include "soloist.modelVolumes" $root }}
        {{- . | trim | nindent 8 }}
        {{- end }}
{{- end }}

{{- define "soloist.serverContainer" -}}
image: {{ include "soloist.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [serve, --config, /etc/soloist/soloist.yaml]
env:
  {{- include "soloist.folders" . | nindent 2 }}
  {{- if .Values.kubernetes.enabled }}
  - name: SOLOIST_KUBERNETES
    value: "on"
  {{- range $name, $field := dict "POD_NAME" "metadata.name" "POD_NAMESPACE" "metadata.namespace" "NODE_NAME" "spec.nodeName" }}
  - name: SOLOIST_{{ $name }}
    valueFrom:
      fieldRef:
        fieldPath: {{ $field }}
  {{- end }}
  {{- end }}
  {{- if eq .Values.model.source "hub" }}
  - name: HF_HOME
    value: /cache/hub
  {{- end }}
  {{- if eq .Values.model.source "s3" }}
  {{- with .Values.model.s3.region }}
  - name: AWS_REGION
    value: {{ . | quote }}
  {{- end }}
  {{- with .Values.model.s3.credentialsSecret }}
  {{- range list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
  - name: {{ . | quote }}
    valueFrom:
      secretKeyRef:
        name: {{ $.Values.model.s3.credentialsSecret | quote }}
        key: {{ . }}
  {{- end }}
  {{- end }}
  {{- end }}
ports:
  - {name: grpc, containerPort: 50051}
  - {name: metrics, containerPort: 9400}
  - {name: probes, containerPort: 9401}
startupProbe:
  grpc: {port: 9401, service: startup}
  {{- with .Values.probes.startup }}
  periodSeconds: {{ .periodSeconds }}
  timeoutSeconds: {{ .timeoutSeconds }}
  failureThreshold: {{ divf .budgetSeconds .periodSeconds | ceil | int }}
  {{- end }}
readinessProbe:
  grpc: {port: 9401, service: readiness}
  {{- toYaml .Values.probes.readiness | nindent 2 }}
livenessProbe:
  grpc: {port: 9401, service: liveness}
  {{- toYaml .Values.probes.liveness | nindent 2 }}
lifecycle:
  preStop:
    sleep:
      seconds: {{ .Values.shutdown.preStopSeconds }}
resources:
  # Equal, so that the pod is the last to be evicted, and the server sees by its quota how many threads are of use.
  {{- range list "requests" "limits" }}
  {{ . }}:
    cpu: {{ $.Values.resources.cpu | quote }}
    memory: {{ $.Values.resources.memory }}
    {{- if eq $.Values.variant "cuda" }}
    {{ $.Values.resources.gpuResource }}: 1
    {{- end }}
  {{- end }}
securityContext:
  {{- include "soloist.containerSecurityContext" . | nindent 2 }}
volumeMounts:
  - {name: etc, mountPath: /etc/soloist, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  - {name: shm, mountPath: /dev/shm}
  {{- if has .Values.model.source (list "pvc" "image" "hostPath") }}
  - {name: models, mountPath: /models, readOnly: true}
  {{- end }}
  {{- if ne .Values.model.cache.type "none" }}
  - {name: cache, mountPath: /cache}
  {{- end }}
{{- end }}
