{{/* Where server pods may run. `.tier` is `main`, or `floor` for those that stay on on-demand nodes. */}}

{{- define "soloist.affinity" -}}
{{- $placement := .root.Values.placement -}}
{{- $capacity := ternary "on-demand" $placement.capacity (eq .tier "floor") -}}
{{- $pools := dict "spot" (list $placement.pools.spot) "on-demand" (list $placement.pools.onDemand) "spot-preferred" (list $placement.pools.spot $placement.pools.onDemand) -}}
{{- with get $pools $capacity }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - key: soloist.dev/pool
              operator: In
              values: {{ toJson . }}
    {{- if eq $capacity "spot-preferred" }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        preference:
          matchExpressions:
            - key: soloist.dev/pool
              operator: In
              values: [{{ $placement.pools.spot | quote }}]
    {{- end }}
{{- end }}
{{- end }}

{{/* The same for both tiers, and another one for other settings, another image or another model. */}}
{{- define "soloist.revision" -}}
{{ printf "%s%s%s" (include "soloist.settingsFile" .) (include "soloist.serverContainer" .) (include "soloist.modelVolumes" .) | sha256sum | trunc 16 }}
{{- end }}

{{- define "soloist.placement" -}}
{{- $placement := .root.Values.placement -}}
{{- $spread := .root.Values.topologySpread -}}
{{- include "soloist.affinity" . }}
{{- with $placement.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if or (eq .root.Values.variant "cuda") $placement.tolerations }}
tolerations:
  {{- if eq .root.Values.variant "cuda" }}
  - key: nvidia.com/gpu
    operator: Exists
    effect: NoSchedule
  {{- end }}
  {{- with $placement.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- with $placement.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with include "soloist.priorityClassName" .root }}
priorityClassName: {{ . | quote }}
{{- end }}
topologySpreadConstraints:
  {{- range $key, $skew := dict "topology.kubernetes.io/zone" $spread.zoneSkew "kubernetes.io/hostname" $spread.nodeSkew }}
  - topologyKey: {{ $key }}
    maxSkew: {{ $skew }}
    whenUnsatisfiable: {{ $spread.whenUnsatisfiable }}
    # Pods of the version that is going are not counted; those of the other tier are, so not by `pod-template-hash`.
    matchLabelKeys: [soloist.dev/revision]
    labelSelector:
      matchLabels:
        {{- include "soloist.selector" (dict "root" $.root "component" "server") | nindent 8 }}
  {{- end }}
{{- end }}
