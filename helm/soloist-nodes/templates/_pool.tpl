{{/* One NodePool. `.pool`: name, label, weight, capacity (spot, on-demand) and types. */}}
{{- define "soloist-nodes.pool" -}}
{{- $values := .root.Values -}}
{{- $disruption := $values.disruption -}}
{{- $calm := eq $disruption.consolidation "calm" -}}
apiVersion: karpenter.sh/v1
kind: NodePool
metadata:
  name: {{ .pool.name | quote }}
  labels:
    {{- include "soloist-nodes.labels" .root | nindent 4 }}
spec:
  weight: {{ .pool.weight }}
  limits:
    cpu: {{ $values.limits.cpu | quote }}
    memory: {{ $values.limits.memory | quote }}
    nvidia.com/gpu: {{ $values.limits.gpus | quote }}
  disruption:
    consolidationPolicy: {{ ternary "WhenEmpty" "WhenEmptyOrUnderutilized" $calm }}
    consolidateAfter: {{ $disruption.consolidateAfter | default (ternary "5m" "30s" $calm) }}
    budgets:
      {{- toYaml $disruption.budgets | nindent 6 }}
  template:
    metadata:
      labels:
        soloist.dev/pool: {{ .pool.label | quote }}
        {{- with $values.labels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      nodeClassRef:
        group: karpenter.k8s.aws
        kind: EC2NodeClass
        name: {{ $values.nodeClass.name | quote }}
      expireAfter: {{ $disruption.expireAfter }}
      terminationGracePeriod: {{ $disruption.terminationGracePeriod }}
      taints:
        - key: nvidia.com/gpu
          value: present
          effect: NoSchedule
        {{- with $values.taints }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      requirements:
        - key: karpenter.sh/capacity-type
          operator: In
          values: [{{ .pool.capacity }}]
        - key: node.kubernetes.io/instance-type
          operator: In
          values: {{ toJson .pool.types }}
        # Beside the types, so that none of them can come with more: a pod uses one, and the others would be paid for.
        - key: karpenter.k8s.aws/instance-gpu-count
          operator: In
          values: ["1"]
        - key: kubernetes.io/arch
          operator: In
          values: [amd64]
        - key: kubernetes.io/os
          operator: In
          values: [linux]
        {{- with $values.zones }}
        - key: topology.kubernetes.io/zone
          operator: In
          values: {{ toJson . }}
        {{- end }}
{{- end }}

{{- define "soloist-nodes.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end }}
