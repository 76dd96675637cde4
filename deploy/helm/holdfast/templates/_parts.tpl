{{/* Parts that the templates share. */}}

{{- define "holdfast.labels" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "holdfast.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The masters' addresses, for nodes: any of them names the primary. */}}
{{- define "holdfast.addresses" -}}
{{- $all := list -}}
{{- range $number := until (int .Values.masters.replicas) -}}
{{- $all = append $all (printf "%s-masters-%d.%s-masters.%s.svc:7070" $.Release.Name $number $.Release.Name $.Release.Namespace) -}}
{{- end -}}
{{- join "," $all -}}
{{- end }}

{{- define "holdfast.coordination" -}}
{{- if .Values.etcd.enabled -}}
{{- $all := list -}}
{{- range $number := until (int .Values.etcd.replicas) -}}
{{- $all = append $all (printf "%s-etcd-%d.%s-etcd.%s.svc:2379" $.Release.Name $number $.Release.Name $.Release.Namespace) -}}
{{- end -}}
etcd://{{ join "," $all }}/{{ .Values.cluster }}?ca=/run/secrets/ca.crt&cert=/run/secrets/tls.crt&key=/run/secrets/tls.key
{{- else -}}
{{ .Values.coordination.url }}
{{- end -}}
{{- end }}

{{/* Pods of one kind on different machines. Called with a dict of root, part and antiAffinity. */}}
{{- define "holdfast.affinity" -}}
podAntiAffinity:
  {{- if eq .antiAffinity "required" }}
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels:
          {{- include "holdfast.labels" .root | nindent 10 }}
          app.kubernetes.io/component: {{ .part }}
  {{- else }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "holdfast.labels" .root | nindent 12 }}
            app.kubernetes.io/component: {{ .part }}
  {{- end }}
{{- end }}

{{- define "holdfast.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "holdfast.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{/* holdfast reads secrets only from files that no other user may read. Kubernetes mounts them readable for the group, so
     they are copied into memory first. A changed secret counts after a restart of the pods. */}}
{{- define "holdfast.secretsContainer" -}}
- name: secrets
  image: {{ include "holdfast.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [sh, -c, "install -m 0400 /mounted/tls/* /mounted/identities/* /run/secrets/"]
  securityContext:
    {{- include "holdfast.securityContext" . | nindent 4 }}
  volumeMounts:
    - { name: tls, mountPath: /mounted/tls, readOnly: true }
    - { name: identities, mountPath: /mounted/identities, readOnly: true }
    - { name: secrets, mountPath: /run/secrets }
{{- end }}

{{- define "holdfast.secretsVolumes" -}}
- name: tls
  secret: { secretName: {{ .Values.tls.secretName | quote }} }
- name: identities
  secret: { secretName: {{ .Values.identities.secretName | quote }} }
- name: secrets
  emptyDir: { medium: Memory, sizeLimit: 4Mi }
{{- end }}

{{- define "holdfast.tls" -}}
- { name: HOLDFAST_TLS_CERT, value: /run/secrets/tls.crt }
- { name: HOLDFAST_TLS_KEY, value: /run/secrets/tls.key }
- { name: HOLDFAST_TLS_CA, value: /run/secrets/ca.crt }
{{- end }}
