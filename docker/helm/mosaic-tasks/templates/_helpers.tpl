{{- define "mosaic.labels" -}}
app.kubernetes.io/name: mosaic-tasks
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
{{- end }}

{{- define "mosaic.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "mosaic.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "mosaic.environment" -}}
- name: MOSAIC_REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.server.secret | quote }}, key: {{ .Values.server.key | quote }}}}
- {name: MOSAIC_TOPOLOGY, value: /etc/mosaic/topology.yaml}
{{- if .Values.models }}
- {name: MOSAIC_MODELS, value: /etc/mosaic/models.yaml}
{{- end }}
{{- range $name, $value := .Values.environment }}
- {name: {{ $name | quote }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}
