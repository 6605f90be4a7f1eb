{{/* What values must be to each other. Each broken rule ends the installation with a sentence. */}}

{{- define "soloist-nodes.checks" -}}
{{- $pools := .Values.pools -}}
{{- if not (or $pools.spot.enabled $pools.onDemand.enabled) -}}
{{- fail "Both pools are off, so that no node could come: enable pools.spot or pools.onDemand." -}}
{{- end -}}
{{- if and $pools.spot.enabled $pools.onDemand.enabled -}}
{{- if eq $pools.spot.name $pools.onDemand.name -}}
{{- fail (printf "pools.spot.name and pools.onDemand.name are both %s: pods could not tell the pools apart." $pools.spot.name) -}}
{{- end -}}
{{- if le (int $pools.spot.weight) (int $pools.onDemand.weight) -}}
{{- fail (printf "pools.spot.weight is %d and pools.onDemand.weight %d: on-demand nodes would come first. Give spot the higher one." (int $pools.spot.weight) (int $pools.onDemand.weight)) -}}
{{- end -}}
{{- end -}}
{{- if and $pools.spot.enabled $pools.onDemand.enabled $pools.spot.moreInstanceTypes (le (div (int $pools.spot.weight) 2) (int $pools.onDemand.weight)) -}}
{{- fail (printf "Half of pools.spot.weight, %d, is for pools.spot.moreInstanceTypes, and pools.onDemand.weight is %d: on-demand nodes would come first. Raise the former." (int $pools.spot.weight) (int $pools.onDemand.weight)) -}}
{{- end -}}
{{- if and $pools.spot.enabled $pools.onDemand.enabled $pools.spot.moreInstanceTypes (eq (printf "%s-more" $pools.spot.name) $pools.onDemand.name) -}}
{{- fail (printf "pools.onDemand.name is %s, which is the pool of pools.spot.moreInstanceTypes: choose another name." $pools.onDemand.name) -}}
{{- end -}}
{{- if and $pools.spot.moreInstanceTypes (not $pools.spot.enabled) -}}
{{- fail "pools.spot.moreInstanceTypes is set, and pools.spot.enabled is false: enable it, or unset the types." -}}
{{- end -}}
{{- range $pools.spot.moreInstanceTypes -}}
{{- if has . $.Values.instanceTypes -}}
{{- fail (printf "%s is in instanceTypes and in pools.spot.moreInstanceTypes: leave it in one of them." .) -}}
{{- end -}}
{{- end -}}
{{- include "soloist-nodes.checks.names" . -}}
{{- include "soloist-nodes.checks.limits" . -}}
{{- include "soloist-nodes.checks.disruption" . -}}
{{- $volume := .Values.nodeClass.rootVolume -}}
{{- if and (eq $volume.type "gp3") (gt (int $volume.iops) 16000) -}}
{{- fail (printf "nodeClass.rootVolume.iops is %d, and a gp3 volume has 16000 at most: take io2, or fewer." (int $volume.iops)) -}}
{{- end -}}
{{- end }}

{{- define "soloist-nodes.checks.names" -}}
{{- range $name, $_ := .Values.tags -}}
{{- if or (not $name) (regexMatch "^(aws:|eks:eks-cluster-name$|kubernetes\\.io/cluster|karpenter\\.)" $name) -}}
{{- fail (printf "tags: %q is set by AWS, EKS or Karpenter itself; choose another name." $name) -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := .Values.labels -}}
{{- if or (eq $name "soloist.dev/pool") (eq $name "kubernetes.io/hostname") (regexMatch "^([^/]*\\.)?karpenter\\.(sh|k8s\\.aws)/" $name) -}}
{{- fail (printf "labels: %q is set by this chart, the kubelet or Karpenter; choose another name." $name) -}}
{{- end -}}
{{- if not (regexMatch "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$" $name) -}}
{{- fail (printf "labels: %q is no name of a label, such as example.com/team." $name) -}}
{{- end -}}
{{- end -}}
{{- range .Values.taints -}}
{{- if regexMatch "^([^/]*\\.)?karpenter\\.sh/" .key -}}
{{- fail (printf "taints: %s is Karpenter's own; choose another key." .key) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The largest type, by each measure, as many times as there may be nodes. */}}
{{- define "soloist-nodes.checks.limits" -}}
{{- $known := .Files.Get "instance-types.yaml" | fromYaml -}}
{{- $limits := .Values.limits -}}
{{- $types := .Values.instanceTypes -}}
{{- if .Values.pools.spot.enabled -}}
{{- $types = concat $types .Values.pools.spot.moreInstanceTypes -}}
{{- end -}}
{{- $nodes := int .Values.maxNodes -}}
{{- $memory := trimSuffix "Gi" $limits.memory | int -}}
{{- range $types -}}
{{- $type := get $known . -}}
{{- $cpus := mul $nodes (int $type.cpu) -}}
{{- $gib := mul $nodes (int $type.memory) -}}
{{- if gt $cpus (int $limits.cpu) -}}
{{- fail (printf "limits.cpu is %d, and maxNodes=%d nodes of %s have %d: raise it, or the last pods would wait for ever. Or allow fewer nodes or smaller types." (int $limits.cpu) $nodes . $cpus) -}}
{{- end -}}
{{- if gt $gib $memory -}}
{{- fail (printf "limits.memory is %s, and maxNodes=%d nodes of %s have %dGi: raise it, or the last pods would wait for ever. Or allow fewer nodes or smaller types." $limits.memory $nodes . $gib) -}}
{{- end -}}
{{- end -}}
{{- if gt $nodes (int $limits.gpus) -}}
{{- fail (printf "limits.gpus is %d, and maxNodes=%d nodes have one GPU each: raise it, or allow fewer nodes." (int $limits.gpus) $nodes) -}}
{{- end -}}
{{- end }}

{{- define "soloist-nodes.checks.disruption" -}}
{{- $disruption := .Values.disruption -}}
{{- $after := include "soloist-nodes.seconds" $disruption.consolidateAfter | int -}}
{{- if and (eq $disruption.consolidation "calm") $disruption.consolidateAfter (ne $disruption.consolidateAfter "Never") (lt $after 300) -}}
{{- fail (printf "disruption.consolidateAfter is %s: with disruption.consolidation calm a node is left alone for 5m at least, as a new pod may be on its way to it." $disruption.consolidateAfter) -}}
{{- end -}}
{{- if lt (include "soloist-nodes.seconds" $disruption.terminationGracePeriod | int) 120 -}}
{{- fail (printf "disruption.terminationGracePeriod is %s, less than the 110 s and a little that pods on spot nodes may take to leave: give them 2m at least." $disruption.terminationGracePeriod) -}}
{{- end -}}
{{- end }}

{{/* A duration such as 1h30m as seconds. */}}
{{- define "soloist-nodes.seconds" -}}
{{- $seconds := 0 -}}
{{- range regexFindAll "[0-9]+[smh]" (toString .) -1 -}}
{{- $count := regexFind "[0-9]+" . | int -}}
{{- $seconds = add $seconds (mul $count (get (dict "s" 1 "m" 60 "h" 3600) (regexFind "[smh]" .))) -}}
{{- end -}}
{{- $seconds -}}
{{- end }}
