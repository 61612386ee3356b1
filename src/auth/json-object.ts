const utf8 = new TextDecoder('utf-8', { fatal: true })

export type JsonObject = Readonly<Record<string, unknown>>

/**
 * One JSON object in UTF-8. @throws Error when the bytes are anything else; it quotes nothing of
 * them, as JSON.parse's own would.
 */
export function readJsonObject(bytes: Uint8Array): JsonObject {
  const text = utf8.decode(bytes)
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    throw new Error('not JSON')
  }
  if (!isJsonObject(value)) throw new Error('not a JSON object')
  return value
}

export function isJsonObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
