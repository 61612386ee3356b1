const utf8 = new TextDecoder('utf-8', { fatal: true })

export type JsonObject = Readonly<Record<string, unknown>>

/** One JSON object in UTF-8. @throws Error when the bytes are anything else. */
export function readJsonObject(bytes: Uint8Array): JsonObject {
  const value: unknown = JSON.parse(utf8.decode(bytes))
  if (!isJsonObject(value)) throw new Error('not a JSON object')
  return value
}

export function isJsonObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** An error in one line; fetch's own message says nothing, its cause does. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return error.cause instanceof Error ? `${error.message}: ${error.cause.message}` : error.message
}
